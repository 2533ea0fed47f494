"""What goes wrong in kernels like these: cases that other projects met, and the tests that hold each of them here.

A test is "file::function", from tests/. `GPU` marks what only a GPU can show in full; the tests named then run there
too, and show here what the interpreter or the machine code can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Way = Literal["CPU", "machine code", "GPU", "not here"]


@dataclass(frozen=True, slots=True)
class Pitfall:
    """One of them.

    Args:
        what: what goes wrong, in a sentence.
        way: how it is tested; "not here": nothing of ours can meet it.
        tests: what fails if it does.
        reason: why it is not here, or what a test cannot show.
    """

    what: str
    way: Way
    tests: tuple[str, ...] = ()
    reason: str = ""


_QUANTIZE = "kernels/test_quantize.py::"
_NUMERICS = "kernels/test_quantize_numerics.py::"
_GROUPS = "kernels/test_group_quantize.py::"
_FUSED = "kernels/test_fused_outputs.py::"
_PRODUCT = "kernels/test_scaled_mm.py::"
_CHOICE = "kernels/test_scaled_mm_choice.py::"
_GROUPED = "kernels/test_grouped_mm.py::"
_MOE = "kernels/test_fused_moe.py::"
_ROUTING = "kernels/test_routing.py::"
_CACHE = "kernels/test_kv_cache.py::"
_CALLS = "kernels/test_calls.py::"
_LAYOUTS = "kernels/test_scale_layouts.py::"

PITFALLS: Final = (
    Pitfall(
        "a row or group of zeros has the scale 0, and 0 / 0 is NaN",
        "CPU",
        (
            _GROUPS + "test_zeros_and_tiny_groups_have_one_least_scale",
            _QUANTIZE + "test_scales_come_from_the_finite_elements_of_each_row",
        ),
    ),
    Pitfall(
        "the least power of two as a scale differs between implementations",
        "CPU",
        (_GROUPS + "test_zeros_and_tiny_groups_have_one_least_scale",),
    ),
    Pitfall(
        "a power of two by exp2(ceil(log2(s))) is off by a factor of 2 at exact powers",
        "CPU",
        (_GROUPS + "test_the_scale_is_two_to_the_k_where_the_largest_magnitude_is_that_times_the_formats",),
    ),
    Pitfall(
        "scales are rounded up to powers of two, and codes are kept",
        "CPU",
        (
            _LAYOUTS + "test_what_is_no_power_of_two_has_no_exponent",
            _GROUPS + "test_groups_have_the_codes_and_scales_of_the_reference",
        ),
    ),
    Pitfall(
        "a cast beyond the format's largest value gives NaN",
        "CPU",
        (_NUMERICS + "test_nan_stays_nan_infinity_saturates_and_neither_reaches_others",),
    ),
    Pitfall(
        "NaN is dropped by a maximum or saturated by a clamp, or reaches its whole group",
        "CPU",
        (
            _NUMERICS + "test_nan_stays_nan_infinity_saturates_and_neither_reaches_others",
            _GROUPS + "test_nan_and_infinity_stay_in_their_own_element",
        ),
    ),
    Pitfall(
        "a product with 1 / scale gives other codes than a division",
        "CPU",
        (
            _NUMERICS + "test_ties_between_codes_go_to_the_even_one_under_any_scale",
            "kernels/test_encode.py::test_codes_near_ties_are_those_of_a_division",
            "kernels/test_cuda.py::test_a_quotient_in_few_operations_has_the_codes_of_a_division",
        ),
    ),
    Pitfall(
        "an upper bound of scales is taken for something else, and everything saturates",
        "CPU",
        (_NUMERICS + "test_a_scale_is_what_it_would_be_or_the_upper_bound",),
    ),
    Pitfall(
        "a scale that nobody filled in is used",
        "CPU",
        (
            "methods/test_fp8.py::test_a_stored_scale_must_be_finite_and_positive",
            "building/test_static_scales.py::test_one_scale_that_is_nowhere_is_an_error_that_names_layer_part_and_fix",
        ),
    ),
    Pitfall(
        "a strided input, or one that starts within its storage, is read as contiguous",
        "CPU",
        (
            _FUSED + "test_strides_and_offsets_are_honoured",
            _GROUPS + "test_groups_of_any_layout_and_dtype_are_those_of_their_copy",
            _PRODUCT + "test_operands_and_scales_may_have_any_layout_and_nothing_beside_them_is_read",
        ),
    ),
    Pitfall(
        "offsets of 32 bits overflow",
        "CPU",
        (
            _QUANTIZE + "test_elements_beyond_two_to_the_31st_are_reached",
            _FUSED + "test_elements_beyond_two_to_the_31st_are_reached",
            _PRODUCT + "test_offsets_pass_2_to_the_31",
            _CACHE + "test_offsets_pass_32_bits",
            _GROUPED + "test_an_expert_lies_beyond_what_32_bits_count",
        ),
    ),
    Pitfall(
        "K that no tile divides: the last scale is skipped, or the next row is read",
        "CPU",
        (_PRODUCT + "test_block_scaled_mm_multiplies_any_shape", _GROUPED + "test_products_are_right_for_any_shape"),
    ),
    Pitfall(
        "a tile is longer than a block of scales, and the scale does not advance",
        "CPU",
        (_PRODUCT + "test_every_block_has_its_own_scale",),
    ),
    Pitfall(
        "parts of K overlap, or begin within a tile or a block of scales",
        "CPU",
        (
            _PRODUCT + "test_block_scaled_mm_multiplies_any_shape",
            _CHOICE + "test_k_is_split_until_every_multiprocessor_has_two_programs",
        ),
    ),
    Pitfall(
        "N that 128 does not divide: refused, or written into the next row",
        "CPU",
        (
            _PRODUCT + "test_block_scaled_mm_multiplies_any_shape",
            _PRODUCT + "test_nothing_beside_the_result_is_written",
        ),
    ),
    Pitfall(
        "bulk copies read or write wrongly where strides or addresses are not multiples of 16 bytes",
        "GPU",
        ("kernels/test_weight_only_mm.py::test_aligned_rows_are_copied_in_bulk_where_the_gpu_can",),
        "one kernel reads so, only where 16 divides all of them, and none writes so; a faulty copy shows on a GPU",
    ),
    Pitfall(
        "torch's product by rows reads past the scales where 256 does not divide M",
        "GPU",
        (_CHOICE + "test_torch_computes_the_same",),
        "a fault of torch before 2.6; the check on a GPU compares such shapes",
    ),
    Pitfall(
        "torch's product by blocks takes some M and some GPUs only",
        "CPU",
        (_CHOICE + "test_torch_is_not_given_what_it_would_read_wrongly", _CHOICE + "test_a_product_is_run_by"),
    ),
    Pitfall(
        "a weight by columns loses its layout on the way to a product",
        "CPU",
        (
            _PRODUCT + "test_operands_and_scales_may_have_any_layout_and_nothing_beside_them_is_read",
            "kernels/test_matmul_numerics.py::test_operands_may_have_any_layout",
        ),
    ),
    Pitfall(
        "M = 0, an expert without tokens, or all tokens with one expert",
        "CPU",
        (
            _MOE + "test_all_tokens_may_go_to_one_expert",
            _MOE + "test_no_tokens",
            _GROUPED + "test_all_rows_may_be_of_one_expert_and_the_others_are_not_read",
        ),
    ),
    Pitfall(
        "rows behind the last expert's stay as they were, and spread NaN",
        "CPU",
        (_GROUPED + "test_each_expert_multiplies_its_own_rows",),
    ),
    Pitfall(
        "ids that no expert has index the map of experts; padding has an expert",
        "CPU",
        (
            _ROUTING + "test_ids_of_no_expert_here_are_left_out_and_look_up_nothing",
            _ROUTING + "test_a_map_says_which_experts_are_here",
        ),
    ),
    Pitfall(
        "a token names one expert several times",
        "CPU",
        (
            _ROUTING + "test_all_tokens_may_go_to_one_expert_and_one_token_to_one_expert_many_times",
            _ROUTING + "test_rows_with_nan_have_different_experts_and_nan_weights",
        ),
    ),
    Pitfall(
        "grouped products by masks fail for few rows, and where a segment starts within a tile",
        "CPU",
        (_GROUPED + "test_every_class_of_shapes_is_right", _GROUPED + "test_products_are_right_for_any_shape"),
        "experts begin at any row: there is no mask and no alignment to keep",
    ),
    Pitfall(
        "the layout of a result is assumed, and not read",
        "CPU",
        ("kernels/test_out_layouts.py::test_results_go_where_they_belong_whatever_the_layout",),
    ),
    Pitfall(
        "tensor cores sum FP8 products with few bits, and long sums drift",
        "GPU",
        (
            _PRODUCT + "test_a_long_sum_passes_the_accumulation_gate",
            "kernels/test_accumulation.py::test_the_gate_tells_sums_that_are_taken_out_from_those_that_are_not",
            "proof/test_check.py::test_sums_that_stay_in_the_tensor_cores_are_not_promoted",
        ),
        "here a model of such sums fails the gate, and machine code must add outside the tensor cores",
    ),
    Pitfall(
        "a fused quantizer leaves out the rounding to BF16 that the unfused pair has",
        "CPU",
        (
            _FUSED + "test_a_norm_is_encoded_as_what_it_returns_would_be",
            _FUSED + "test_silu_and_mul_is_encoded_as_what_it_returns_would_be",
        ),
    ),
    Pitfall(
        "a float32 norm weight beside BF16 inputs is read as BF16",
        "CPU",
        (_FUSED + "test_a_float32_weight_is_read_as_such",),
    ),
    Pitfall(
        "AMD's fnuz formats end at 240, not at 448",
        "CPU",
        (
            "kernels/test_dispatch.py::test_kernels_refuse_the_formats_of_amd",
            "kernels/test_dispatch.py::test_plain_torch_encodes_the_formats_of_amd_with_their_own_largest_value",
        ),
    ),
    Pitfall(
        "the scale of an FP8 result multiplies in one place and divides in another",
        "CPU",
        (
            _PRODUCT + "test_an_fp8_result_is_codes_of_the_sum_over_its_scale",
            "kernels/test_matmul.py::test_a_product_may_end_in_codes_of_itself_over_a_scale",
        ),
    ),
    Pitfall(
        "a CUDA graph is broken by waiting for a value, or replays sums that nobody reset",
        "GPU",
        (
            "kernels/test_graphs.py::test_a_replayed_graph_computes_anew",
            "kernels/test_fake_cuda.py::test_plain_torch_asks_for_no_value",
            _QUANTIZE + "test_results_are_new_each_time_and_neighbours_are_not_written",
        ),
        "only a GPU has graphs; here nothing may ask for a value",
    ),
    Pitfall(
        "shapes or strides without data differ from the real ones",
        "CPU",
        (
            _CALLS + "test_without_data_on_a_gpu_an_operator_has_the_layouts_that_it_has_on_a_cpu",
            "kernels/test_opcheck.py::test_without_data_on_a_gpu_every_call_has_the_layouts_that_it_has_on_a_cpu",
        ),
    ),
    Pitfall(
        "what is written is not declared, or an argument is returned",
        "CPU",
        (
            "kernels/test_opcheck.py::test_an_operator_is_as_it_is_declared",
            "kernels/test_opcheck.py::test_an_operator_that_writes_where_results_belong_is_as_it_is_declared",
        ),
    ),
    Pitfall(
        "codes decoded by shifts lack a factor of the exponent, and NaN becomes finite",
        "CPU",
        ("kernels/test_weight_only_mm.py::test_every_code_is_decoded_exactly",),
    ),
    Pitfall(
        "the scales of keys and values are swapped, ignored or multiplied; a slot of -1 is written",
        "CPU",
        (
            _CACHE + "test_what_is_stored_is_x_divided_by_its_own_scale",
            _CACHE + "test_slots_that_are_not_there_are_skipped",
        ),
    ),
    Pitfall(
        "a weight-only product takes some N and K only, and a shard has others",
        "CPU",
        ("kernels/test_weight_only_mm.py::test_it_is_the_product_with_the_decoded_weight",),
    ),
    Pitfall(
        "ranks quantize with scales of their own, and one of them is used for all",
        "not here",
        (),
        "there is no tensor parallelism yet",
    ),
    Pitfall(
        "specialized warps give wrong results in some versions of Triton",
        "not here",
        ("kernels/test_pitfalls.py::test_no_kernel_asks_for_what_is_not_here",),
        "no kernel asks for them",
    ),
    Pitfall(
        "a driver refuses PTX that is newer than itself",
        "machine code",
        ("kernels/test_pitfalls.py::test_the_cuda_library_holds_no_ptx",),
        "Triton's own assembler writes for the driver at hand",
    ),
)
