"""What is trained: layers, activations, losses, optimizers, schedules."""
