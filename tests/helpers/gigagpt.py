"""gigaGPT's whole job in one file: a plain GPT, its data, training, evaluation, sampling.

Cerebras/gigaGPT shows how little code a large GPT takes when a system holds it whole. This is the
same job on ``wafer.loop``: a model of ordinary Linen layers, a loop of statements, any number of
systems. Text is bytes of this Python's own standard library, so that nothing is downloaded.

    python tests/helpers/gigagpt.py train --model_dir runs/gigagpt --num_steps 300
    python tests/helpers/gigagpt.py eval --model_dir runs/gigagpt
    python tests/helpers/gigagpt.py sample --model_dir runs/gigagpt --prompt "def read("
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import sysconfig

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import wafer.loop as cstorch

# --- configuration ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The published 111M model has hidden_size 768, 10 layers, 12 heads, length 2048."""

    vocab_size: int = 256
    max_position_embeddings: int = 128
    hidden_size: int = 128
    num_hidden_layers: int = 3
    num_heads: int = 4
    filter_size: int = 512
    dropout: float = 0.0
    initializer_range: float = 0.02


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that is not the model."""

    batch_size: int = 16
    num_steps: int = 300
    warmup_steps: int = 30
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_gradient_norm: float = 1.0
    checkpoint_steps: int = 100
    log_steps: int = 10
    eval_steps: int = 20
    seed: int = 1
    num_csx: int = 1


# --- model --------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention with one product for queries, keys and values."""

    cfg: GPTConfig

    @nn.compact
    def __call__(self, x):
        """Mix [B, S, D] over positions."""
        cfg, (batch, length, _) = self.cfg, x.shape
        init = nn.initializers.truncated_normal(cfg.initializer_range)
        qkv = nn.Dense(3 * cfg.hidden_size, kernel_init=init, name="qkv")(x)
        q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, cfg.num_heads, -1), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = nn.softmax(jnp.where(causal, scores, jnp.finfo(scores.dtype).min))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, -1)
        scale = cfg.initializer_range / math.sqrt(2 * cfg.num_hidden_layers)
        out = nn.initializers.truncated_normal(scale)
        return nn.Dense(cfg.hidden_size, kernel_init=out, name="output")(mixed)


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    cfg: GPTConfig

    @nn.compact
    def __call__(self, x, train):
        """Transform [B, S, D]."""
        cfg = self.cfg
        init = nn.initializers.truncated_normal(cfg.initializer_range)
        scale = cfg.initializer_range / math.sqrt(2 * cfg.num_hidden_layers)
        drop = nn.Dropout(cfg.dropout, deterministic=not train)
        x = x + drop(Attention(cfg, name="attn")(nn.LayerNorm(name="norm1")(x)))
        h = nn.Dense(cfg.filter_size, kernel_init=init, name="up")(nn.LayerNorm(name="norm2")(x))
        out = nn.initializers.truncated_normal(scale)
        return x + drop(nn.Dense(cfg.hidden_size, kernel_init=out, name="down")(nn.gelu(h)))


class GPTModel(nn.Module):
    """Token and position embeddings, blocks, and the shared embedding as output."""

    cfg: GPTConfig

    @nn.compact
    def __call__(self, input_ids, train):
        """Score the next token: [B, S] ids -> [B, S, V] logits."""
        cfg = self.cfg
        init = nn.initializers.truncated_normal(cfg.initializer_range)
        tokens = nn.Embed(cfg.vocab_size, cfg.hidden_size, embedding_init=init, name="embedding")
        places = nn.Embed(
            cfg.max_position_embeddings, cfg.hidden_size, embedding_init=init, name="position"
        )
        x = tokens(input_ids) + places(jnp.arange(input_ids.shape[1]))
        x = nn.Dropout(cfg.dropout, deterministic=not train)(x)
        for i in range(cfg.num_hidden_layers):
            x = Block(cfg, name=f"layers_{i}")(x, train)
        return tokens.attend(nn.LayerNorm(name="norm_f")(x))


def cross_entropy(logits, labels):
    """Mean loss over all tokens, nats."""
    scores = nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(scores, labels[..., None], axis=-1).mean()


# --- data ---------------------------------------------------------------------------------


def prepare(path, limit=2_000_000):
    """Write the standard library's source as one array of bytes: train.npy and val.npy."""
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "val.npy").exists():
        library = pathlib.Path(sysconfig.get_paths()["stdlib"])
        text = b"\n".join(file.read_bytes() for file in sorted(library.glob("*.py")))[:limit]
        tokens = np.frombuffer(text, np.uint8)
        cut = int(0.95 * len(tokens))
        np.save(path / "train.npy", tokens[:cut])
        np.save(path / "val.npy", tokens[cut:])
    return path


class Windows:
    """Random windows of a token array; a pass is one batch per ``batch_size`` windows."""

    def __init__(self, path, length, batch_size, seed):
        self.tokens = np.load(path, mmap_mode="r")
        self.length, self.batch_size = length, batch_size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        """Batches of a pass."""
        return len(self.tokens) // (self.length * self.batch_size)

    def __iter__(self):
        """Yield (input_ids, labels), both [B, S] int32."""
        for _ in range(len(self)):
            starts = self.rng.integers(0, len(self.tokens) - self.length - 1, self.batch_size)
            rows = np.stack([self.tokens[s : s + self.length + 1] for s in starts])
            yield rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)


def get_dataloader(path, length, batch_size, seed):
    """Make the batches of one pass."""
    return Windows(path, length, batch_size, seed)


# --- train --------------------------------------------------------------------------------


def train(model_cfg, cfg, model_dir, checkpoint=None):
    """Train, from scratch or from a checkpoint; returns [(step, loss)]."""
    data = prepare(model_dir / "data")
    backend = cstorch.backend("CSX", seed=cfg.seed)
    with backend.device:
        model = GPTModel(model_cfg)
    compiled_model = cstorch.compile(model, backend)

    optimizer = cstorch.optim.configure_optimizer(
        "AdamW",
        compiled_model.parameters(),
        lr=cfg.learning_rate,
        betas=cfg.betas,
        weight_decay=cfg.weight_decay,
    )
    warmup = cstorch.optim.lr_scheduler.LinearLR(
        optimizer,
        initial_learning_rate=0.0,
        end_learning_rate=cfg.learning_rate,
        total_iters=cfg.warmup_steps,
    )
    decay = cstorch.optim.lr_scheduler.CosineDecayLR(
        optimizer,
        initial_learning_rate=cfg.learning_rate,
        end_learning_rate=0.1 * cfg.learning_rate,
        total_iters=cfg.num_steps - cfg.warmup_steps,
    )
    lr_scheduler = cstorch.optim.lr_scheduler.SequentialLR(
        optimizer, schedulers=[warmup, decay], milestones=[cfg.warmup_steps]
    )
    grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic")

    global_step = 0
    if checkpoint is not None:
        state = cstorch.load(checkpoint)
        compiled_model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        lr_scheduler.load_state_dict(state["lr_scheduler"])
        grad_scaler.load_state_dict(state["grad_scaler"])
        global_step = state["global_step"]

    losses = []
    writer = cstorch.utils.tensorboard.SummaryWriter(str(model_dir / "train"))

    @cstorch.trace
    def training_step(batch):
        input_ids, labels = batch
        logits = compiled_model(input_ids)
        loss = cross_entropy(logits, labels)
        cstorch.amp.optimizer_step(
            loss, optimizer, grad_scaler, max_gradient_norm=cfg.max_gradient_norm
        )
        lr_scheduler.step()
        return loss

    @cstorch.step_closure
    def log_loss(loss, step):
        losses.append((step, loss.item()))
        cstorch.utils.tensorboard.summarize_scalar("loss", loss)
        if step % cfg.log_steps == 0 or executor.on_final_iteration:
            rate, overall = executor.profiler.rate, executor.profiler.global_rate
            print(
                f"| Train Device={backend.name}, Step={step}, Loss={loss.item():.5f}, "
                f"Rate={rate:.2f} samples/sec, GlobalRate={overall:.2f} samples/sec"
            )

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        state = {
            "model": compiled_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "grad_scaler": grad_scaler.state_dict(),
            "global_step": step,
            "config": {"model": dataclasses.asdict(model_cfg)},
        }
        cstorch.save(state, model_dir / f"checkpoint_{step}")
        print(f"Saved checkpoint at step {step}")

    dataloader = cstorch.utils.data.DataLoader(
        get_dataloader,
        data / "train.npy",
        model_cfg.max_position_embeddings,
        cfg.batch_size,
        cfg.seed + global_step,
    )
    executor = cstorch.utils.data.DataExecutor(
        dataloader,
        num_steps=cfg.num_steps - global_step,
        checkpoint_steps=cfg.checkpoint_steps,
        cs_config=cstorch.utils.CSConfig(num_csx=cfg.num_csx),
        writer=writer,
    )
    for step, batch in enumerate(executor, start=global_step + 1):
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)
    writer.close()
    print("Training completed successfully!")
    return losses


# --- evaluate and sample --------------------------------------------------------------------


def newest(model_dir):
    """The checkpoint of the highest step."""
    checkpoints = sorted(
        model_dir.glob("checkpoint_*"), key=lambda p: int(p.name.rpartition("_")[2])
    )
    if not checkpoints:
        raise SystemExit(f"{model_dir} holds no checkpoint; train first")
    return checkpoints[-1]


def restore(model_dir, seed=0):
    """Put the newest checkpoint's model on a backend, for reading only."""
    state = cstorch.load(newest(model_dir))
    cfg = GPTConfig(**state["config"]["model"])
    model = cstorch.compile(GPTModel(cfg), cstorch.backend("CSX", seed=seed))
    model.load_state_dict(state["model"])
    return model.eval(), cfg


def evaluate(model_dir, cfg):
    """Loss, perplexity and bits per byte on held-out text."""
    model, model_cfg = restore(model_dir)
    data = prepare(model_dir / "data")
    total = []

    @cstorch.trace
    def eval_step(batch):
        input_ids, labels = batch
        add(cross_entropy(model(input_ids), labels))

    @cstorch.step_closure
    def add(loss):
        total.append(loss.item())

    length = model_cfg.max_position_embeddings
    loader = cstorch.DataLoader(get_dataloader, data / "val.npy", length, cfg.batch_size, 0)
    systems = cstorch.CSConfig(num_csx=cfg.num_csx)
    for batch in cstorch.DataExecutor(loader, num_steps=cfg.eval_steps, cs_config=systems):
        eval_step(batch)
    loss = float(np.mean(total))
    return {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}


def sample(model_dir, prompt, count=200, temperature=0.8, top_k=40, seed=0):
    """Continue a prompt byte by byte; one compiled program for all of them."""
    model, cfg = restore(model_dir, seed)
    length = cfg.max_position_embeddings
    ids, key = list(prompt.encode()), jax.random.key(seed)
    for step in range(count):
        window = ids[-length:]
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(window)] = window  # causal: what follows does not matter
        logits = model(padded)[0, len(window) - 1] / temperature
        best, which = jax.lax.top_k(logits, top_k)
        ids.append(int(which[jax.random.categorical(jax.random.fold_in(key, step), best)]))
    return bytes(ids).decode(errors="replace")


def main(argv=None):
    """Run a verb: train, eval or sample."""
    parser = argparse.ArgumentParser(description="gigaGPT on wafer.loop")
    parser.add_argument("verb", choices=("train", "eval", "sample"))
    parser.add_argument("--model_dir", type=pathlib.Path, default=pathlib.Path("runs/gigagpt"))
    parser.add_argument("--num_steps", type=int, default=TrainConfig.num_steps)
    parser.add_argument("--num_csx", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="from the newest checkpoint")
    parser.add_argument("--prompt", default="def ")
    args = parser.parse_args(argv)
    jax.config.update("jax_num_cpu_devices", max(args.num_csx, 1))
    cfg = TrainConfig(num_steps=args.num_steps, num_csx=args.num_csx)
    if args.verb == "train":
        start = newest(args.model_dir) if args.resume else None
        train(GPTConfig(), cfg, args.model_dir, start)
    elif args.verb == "eval":
        print(json.dumps(evaluate(args.model_dir, cfg)))
    else:
        print(sample(args.model_dir, args.prompt))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
