"""Every name of the vendor's Python API that its public model zoo uses, release 1.8 to 2.10."""

import functools
import importlib
from typing import Any

import jax
import pytest
from flax import nnx

import wafer.loop as cstorch
from wafer import models
from wafer.loop.elsewhere import ELSEWHERE

# Below `cerebras.pytorch`, as the zoo's 23 tags use them.
USED = """
Backend __version__ add_debug_name amp.GradScaler amp.autocast amp.disable_casts
amp.enable_mixed_precision amp.get_floating_point_dtype amp.get_floating_point_dtype_str
amp.get_half_dtype amp.get_half_dtype_str amp.is_cbfloat16_tensor amp.mixed_precision
amp.optimizer_step amp.set_half_dtype amp.use_bfloat16 backend backends.csx.cluster.auto_taint
backends.csx.debug.debug_args backends.csx.debug.fabric_type_blacklist backends.csx.debug.ini
backends.csx.debug.lazy_initialization backends.csx.debug.retrace_every_iteration
backends.csx.performance.micro_batch_size backends.csx.performance.transfer_processes
backends.csx.precision.optimization_level backends.csx.storage.s3 checkpoint_closure cirh compile
compile_step configure core current_backend current_backend_impl current_executor current_pol
current_torch_device distributed.ClusterConfig distributed.barrier distributed.cluster_resolver
distributed.destroy_process_group distributed.get_ordinal distributed.get_rank
distributed.get_streaming_batch_size distributed.get_streaming_rank distributed.get_worker_state
distributed.get_world_size distributed.hit_worker_cache_limit distributed.init_process_group
distributed.is_available distributed.is_master_ordinal distributed.is_streamer
distributed.num_streamers distributed.num_tasks distributed.reduce distributed.service_resolver
experimental.Compression experimental.get_loop_iteration_slice experimental.listener
experimental.run_implicit_autoregressive_loop experimental.start_implicit_loop
experimental.update_implicit_loop from_numpy get_debug_name lib load make_constant manual_seed
metrics.AUCMetric metrics.AccuracyMetric metrics.DiceCoefficientMetric metrics.FBetaScoreMetric
metrics.MeanIOUMetric metrics.MeanMetric metrics.Metric metrics.PerplexityMetric
metrics.PrecisionAtKMetric metrics.RecallAtKMetric name_scope nn.DiceCELoss nn.Scope
nn.SelectiveGrad nn.SmoothL1Loss nn.StripPadding nn.functional.one_hot optim.Optimizer optim.ParamsT
optim.configure_lr_scheduler optim.configure_optimizer optim.configure_param_groups
optim.configure_scheduler optim.lr_scheduler.LRScheduler optim.lr_scheduler.ScalePerParamLR
optim.scheduler optim.weight_decay_scheduler pb pol profiler save save_summaries saver
scalar_summary set_debug_scope sparse.Group sparse.SparsityAlgorithm
sparse.SparsityWrapperOptimizer sparse.configure sparse.configure_sparsity_optimizer
sparse.configure_sparsity_wrapper sparse.default_sparse_param_filter sparse.map_sparsity_algorithm
step_closure storage summarize_scalar summarize_tensor to_numpy trace use_cs utils.CSConfig
utils.benchmark utils.call_once utils.data.DataExecutor utils.data.DataLoader
utils.data.DistributedSampler utils.data.MbsSetting utils.data.Schedule utils.data.SyntheticDataset
utils.data.compute_num_steps utils.data.infer_batch_size utils.data.sampler utils.extract_loss
utils.kernel utils.nest utils.num_kv_groups utils.tensorboard.SummaryWriter
utils.tracker.RateTracker utils.utils workflow
""".split()  # noqa: SIM905


def found(name):
    importlib.import_module("wafer.loop.experimental")
    return functools.reduce(getattr, name.split("."), importlib.import_module("wafer.loop"))


@pytest.mark.parametrize("name", USED)
def test_a_name_of_the_vendors_is_here_or_says_what_to_use(name):
    if name not in ELSEWHERE:
        found(name)
        return
    with pytest.raises(ImportError, match="is not here: "):
        found(name)


def test_the_table_has_no_name_that_is_here():
    for name in ELSEWHERE:
        if not name.startswith("backend."):  # a function here, a module there
            with pytest.raises(ImportError):
                found(name)


def test_an_import_line_gives_the_same_advice():
    with pytest.raises(ImportError, match=r"nn.SmoothL1Loss .* use optax.losses.huber_loss"):
        from wafer.loop.nn import SmoothL1Loss  # noqa: F401
    with pytest.raises(AttributeError, match="no setting 'inni'; did you mean 'ini'"):
        found("backends.csx.debug.inni")
    with pytest.raises(AttributeError, match="has no attribute 'profile'; did you mean 'profiler'"):
        found("profile")


@pytest.mark.parametrize("order", ["net.apply", "algorithm.apply"])
def test_a_network_takes_an_algorithm_once_it_is_compiled(order):
    class Net(cstorch.nn.Module):
        def __init__(self):
            self.inner = nnx.Linear(8, 4, rngs=nnx.Rngs(0))

    net, algorithm = Net(), cstorch.sparse.configure(0.5)
    attach = {
        "net.apply": lambda: net.apply(algorithm),
        "algorithm.apply": lambda: algorithm.apply(net),
    }[order]
    backend = cstorch.backend(seed=3)
    with pytest.raises((RuntimeError, TypeError), match=r"Net is .*compile.* first"):
        attach()
    model = cstorch.compile(net, backend)
    attach()
    assert model.sparsity is algorithm
    algorithm.mask_weights()
    (kernel,) = (leaf for leaf in jax.tree.leaves(model.params) if leaf.shape == (8, 4))
    assert int((kernel == 0).sum()) == 16


def test_either_word_order_attaches_an_algorithm():
    network: Any = models.build({"name": "fc_mnist", "hidden_size": 8, "depth": 1})
    model = cstorch.compile(network, cstorch.backend(seed=3))
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.01)
    algorithm = cstorch.sparse.configure(0.5)
    with pytest.raises(RuntimeError, match="to the model first"):
        algorithm.apply(optimizer)
    with pytest.raises(TypeError, match="apply: Model is neither a compiled model nor an optim"):
        algorithm.apply(models.build({"name": "fc_mnist", "hidden_size": 8, "depth": 1}))
    algorithm.apply(model)
    algorithm.apply(optimizer)
    assert model.sparsity is algorithm
    assert optimizer.sparsity is algorithm
    with pytest.raises(RuntimeError, match="one sparsity algorithm"):
        cstorch.sparse.configure(0.5).apply(model)
