"""Suggestions for an unknown name: it may be a term of PyTorch, Keras or scikit-learn, a feature
that rawnn does not have, or a misspelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.65
"""The similarity of difflib above which one word counts as a misspelling of another: two words of
three letters of which two agree have 0.67."""

ALIASES = {
    # options
    "lr": "learning_rate learning_rate_init learningrate eta step_size alpha_lr",
    "batch": "batch_size minibatch minibatch_size train_batch_size",
    "layers": "hidden_layer_sizes hidden_layers hidden_sizes hidden_size hidden_dim hidden_dims "
              "hidden units layer_sizes architecture n_layers num_layers sizes",
    "epochs": "max_iter n_epochs num_epochs max_epochs nb_epoch num_train_epochs n_iter iterations",
    "optimizer": "solver optim optimiser",
    "loss": "criterion loss_fn loss_function objective",
    "activation": "activation_function nonlinearity",
    "weight_decay": "alpha l2 l2_reg l2_regularization kernel_regularizer",
    "seed": "random_state random_seed rng manual_seed",
    "schedule": "scheduler lr_scheduler lr_schedule learning_rate_schedule lr_decay",
    "validation": "validation_split validation_fraction validation_data val_split test_size "
                  "eval_set",
    "patience": "early_stopping n_iter_no_change early_stopping_rounds",
    "min_delta": "tol tolerance",
    "bias": "use_bias fit_intercept",
    "init": "initializer initialization kernel_initializer weight_init",
    "nesterov": "nesterovs_momentum",
    "eps": "epsilon",
    "beta1": "betas",
    "save": "checkpoint_dir save_dir output_dir checkpoint_path",
    "resume": "resume_from resume_from_checkpoint warm_start",
    "listener": "callbacks callback",
    "normalise": "normalize normalization normalisation standardize standardise scaler",
    "data": "X x_train train_data training_data dataset_path",
    "target": "y y_train label label_column target_column",
    "device": "gpu gpus cuda accelerator",
    "opt": "toggles optimizations",
    # losses
    "cross_entropy": "cross_entropy_loss categorical_crossentropy sparse_categorical_crossentropy "
                     "softmax_cross_entropy log_loss nll nll_loss",
    "mse": "mse_loss mean_squared_error squared_error l2_loss squared_loss",
    "bce": "bce_loss bce_with_logits bce_with_logits_loss binary_crossentropy "
           "binary_cross_entropy binary_cross_entropy_with_logits",
    # devices
    "host": "cpu numpy",
    "gpu": "cuda nvidia",
    # initialisations
    "he": "kaiming kaiming_uniform he_uniform",
    "glorot": "xavier xavier_uniform glorot_uniform",
    # normalisations
    "learned": "standard standardize standardise zscore standard_scaler",
    "pixels": "minmax min_max 255",
    # schedules
    "cosine": "cosine_annealing cosine_decay cosine_annealing_lr",
    "step": "step_lr",
    # toggles
    "graphs": "cuda_graph cuda_graphs cudagraph reduce_overhead",
    "fp16": "float16 half",
    "bf16": "bfloat16 amp mixed_precision autocast",
    "pinned": "pin_memory pinned_memory",
    "nccl": "ddp fsdp data_parallel distributed",
}
"""rawnn's names -> their names elsewhere. An entry counts if rawnn's is among the known names."""

MISSING = {
    "weight_decay": {
        "dropout dropout_rate": "rawnn has no dropout: weight_decay and patience (early stopping) "
                                "act against overfitting",
        "class_weight class_weights sample_weight pos_weight":
            "rawnn has no weights of classes or examples: repeat the rows that are to count more",
        "batch_norm batchnorm batch_normalization layer_norm layernorm":
            "rawnn has no normalisation between layers: normalise is that of the inputs",
        "clipnorm clipvalue grad_clip clip_grad_norm max_grad_norm gradient_clip_val":
            "rawnn does not clip gradients: use a smaller lr, or a warm-up by schedule",
        "warmup warmup_steps warmup_epochs warmup_ratio":
            "a warm-up is part of the schedule, as in warmup:5,cosine",
        "gamma power_t milestones": "it is part of the schedule, as in step:30:0.1",
        "drop_last": "partial (--drop-partial) says whether the last batch of an epoch is kept",
        "l1 l1_reg l1_ratio l1_regularization": "rawnn has no L1 penalty: weight_decay is of L2",
        "label_smoothing": "rawnn has no label smoothing",
        "amsgrad": "rawnn has no AMSGrad",
        "num_workers n_jobs workers": "there are no workers: the data are in memory, or on the GPU",
        "n_gpus num_gpus nproc": "python -m rawnn launch -n 2 starts a run on two GPUs",
        "dtype precision amp mixed_precision":
            "the type of numbers is a toggle: opt='best,bf16', or fp16, fp8, tf32",
        "metrics": "loss and accuracy are always measured",
        "verbose verbosity": "what a run says goes to its listener and to the logger 'rawnn'; the "
                             "command has --quiet",
    },
    "mse": {
        "huber huber_loss smooth_l1 smooth_l1_loss mae mae_loss l1 l1_loss mean_absolute_error "
        "absolute_error":
            "rawnn does not have this loss: there are {known}, of which mse is for values",
        "hinge squared_hinge focal focal_loss kl_div kl_divergence poisson ctc triplet":
            "rawnn does not have this loss: there are {known}",
    },
    "relu": {
        "sigmoid logistic": "there is none between layers; the loss bce applies it to the outputs",
        "softmax log_softmax": "the loss cross_entropy applies it to the outputs",
        "leaky_relu leakyrelu prelu elu selu celu relu6 silu swish mish softplus":
            "rawnn does not have it: there are {known}",
        "identity linear none": "layers without an activation between them are one layer",
    },
    "adam": {
        "rmsprop adagrad adadelta adamax nadam radam adafactor lbfgs lamb lion muon ftrl":
            "rawnn does not have it: there are {known}",
    },
    "host": {
        "mps metal rocm hip xpu tpu npu": "rawnn runs on GPUs of NVIDIA, and on the host",
    },
    "persistent": {
        "fp32 float32 float": "a run computes in float32 where no toggle says otherwise",
    },
}
"""What others have and rawnn has not, or has otherwise, in a sentence; by a name that is among the
known where the sentence is about them; `{known}` is all that are."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for what a word probably means, or `; ` and a sentence if rawnn lacks
    it; "" if neither is known."""
    key, names = _plain(word), {_plain(name): name for name in reversed(list(known))}
    if not key:
        return ""
    if key not in names:
        for anchor, sentences in _SENTENCES.items():
            if anchor in names and key in sentences:
                return f"; {sentences[key].format(known=_joined(sorted(names.values())))}"
        meant = [ours for ours in _OURS.get(key, ()) if ours in names]
        key = next(iter(meant or difflib.get_close_matches(key, names, 1, CUTOFF)), "")
    return f"; did you mean '{names[key]}'?" if key else ""


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _plain(word: str) -> str:
    """Letters and digits only, in lower case: "--weight-decay" and "WeightDecay" are equal."""
    return "".join(c for c in word.casefold() if c.isalnum())


_OURS: dict[str, list[str]] = {}
for _ours, _words in ALIASES.items():
    for _word in _words.split():
        _OURS.setdefault(_plain(_word), []).append(_plain(_ours))
_SENTENCES = {_plain(anchor): {_plain(word): sentence for words, sentence in rows.items()
                               for word in words.split()} for anchor, rows in MISSING.items()}
