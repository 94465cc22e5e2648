"""Each line on trainers in docs/compatibility.md has the test that runs it, in tests/integrations."""

import inspect

import pytest
import test_accelerate_and_fabric as loops
import test_lightning_callback as lightning
import test_several_processes as processes
import test_transformers_callback as transformers
from cases_trainers import CASES

RUN_BY = {
    ("Transformers", "`Trainer`"): transformers.test_it_is_the_same_training_as_in_a_plain_loop,
    (
        "Transformers",
        "accumulation, clipping, `max_steps`",
    ): transformers.test_it_announces_the_steps_that_come,
    ("Transformers", "bf16"): transformers.test_mixed_precision_leaves_no_wrapper,
    ("Transformers", "gradient checkpointing"): transformers.test_a_bert_with_gradient_checkpointing,
    ("Transformers", "`resume_from_checkpoint`"): transformers.test_resumed_is_uninterrupted,
    ("Transformers", "`load_best_model_at_end`"): transformers.test_the_best_model_is_the_one_that_was_evaluated,
    (
        "Transformers",
        "`load_best_model_at_end` with gradual pruning (`gmp`)",
    ): transformers.test_gradual_pruning_has_no_best_checkpoint,
    ("Transformers", "several processes (DDP)"): processes.test_two_processes_train_what_one_does,
    ("Lightning", "automatic optimization"): lightning.test_it_is_the_same_training_as_in_a_plain_loop,
    ("Lightning", "manual optimization, one optimizer"): lightning.test_it_is_the_same_training_as_in_a_plain_loop,
    ("Lightning", "manual optimization, several optimizers"): lightning.test_a_second_optimizer_is_refused,
    ("Lightning", "accumulation, clipping, `max_steps`"): lightning.test_it_announces_the_steps_that_come,
    ("Lightning", "`bf16-mixed`"): lightning.test_resumed_is_uninterrupted,
    ("Lightning", "`fit(ckpt_path=...)`"): lightning.test_resumed_is_uninterrupted,
    ("Lightning", "`Tuner.lr_find`, then `fit`"): lightning.test_finding_a_learning_rate_first,
    (
        "Lightning",
        "`EMAWeightAveraging`, `WeightAveraging`, `StochasticWeightAveraging`",
    ): lightning.test_other_averages_are_refused,
    ("Lightning", "several processes (DDP)"): processes.test_two_processes_train_what_one_does,
    ("Accelerate", "`cigl.attach` before `prepare`"): loops.test_attached_before_prepare,
    ("Accelerate", "`cigl.attach` after `prepare`"): loops.test_attached_after_prepare,
    ("Accelerate", "`register_for_checkpointing(sparse)`"): loops.test_accelerate_resumes,
    ("Fabric", "`cigl.attach` before `setup`"): loops.test_fabric_resumes,
    ("Fabric", "`fabric.save` and `fabric.load`"): loops.test_fabric_resumes,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.name}")
def test_the_case_is_run(case):
    test = RUN_BY[case.kind, case.name]
    assert ("pytest.raises(cigl.CiglError" in inspect.getsource(test)) == (case.outcome == "refused")


def test_nothing_is_run_that_is_not_in_the_table():
    assert RUN_BY.keys() == {(case.kind, case.name) for case in CASES}
