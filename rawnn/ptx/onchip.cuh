// Everything that a generated training kernel is composed of (rawnn/onchip writes it).
#pragma once
#include "activations.cuh"
#include "onchip_elements.cuh"
#include "onchip_exchange.cuh"
#include "onchip_far.cuh"
#include "onchip_groups.cuh"
#include "onchip_input.cuh"
#include "onchip_loss.cuh"
#include "onchip_product.cuh"
#include "onchip_scale.cuh"
#include "onchip_slices.cuh"
#include "onchip_weights.cuh"
#include "pdl.cuh"
