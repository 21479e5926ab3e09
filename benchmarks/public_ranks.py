"""Lists the programs for benchmarks/public_rank_programs.py, with edits that avoid downloads and shorten the training."""

from __future__ import annotations

from dataclasses import dataclass, field

VERSIONS = {
    "examples": "pytorch/examples 77f55b9",
    "accelerate": "huggingface/accelerate 16cb6eb8, package 1.15.0",
    "trainer": "huggingface/transformers tests/trainer/distributed/scripts, package 5.23.0",
    "lightning": "Lightning-AI/pytorch-lightning 7f0c3436, package 2.6.6",
    "deepspeed": "deepspeedai/DeepSpeedExamples 45b4b715, package 0.19.8",
    "megatron": "NVIDIA/Megatron-LM d98e8a64",
    "torchtitan": "pytorch/torchtitan b5bcd76c",
    "elastic": "pytorch/elastic bc88e69",
    "ignite": "pytorch/ignite de08e799c, package 0.5.5",
    "nanoGPT": "karpathy/nanoGPT 3adf61e1",
    "torch": "pytorch/pytorch torch/distributed/checkpoint/examples (2b91fa3c, 123527f6)",
    "pippy": "pytorch/PiPPy 1bcb2bfb, transformers 5.23.0",
    "barlowtwins": "facebookresearch/barlowtwins 8e8d284",
    "simsiam": "facebookresearch/simsiam a7bc177",
    "moco": "facebookresearch/moco 7397dfe",
    "dino": "facebookresearch/dino 7c446df",
    "timm": "huggingface/pytorch-image-models aa4b5850",
    "openclip": "mlfoundations/open_clip 89fb801",
    "llmc": "karpathy/llm.c f1e2ace",
    "mleng": "stas00/ml-engineering 744d01e",
    "moddednanogpt": "KellerJordan/modded-nanogpt f411b3d3",
    "beyond": "tanishqkumar/beyond-nanogpt cb1d7bc",
    "tczhangzhi": "tczhangzhi/pytorch-distributed cd12856",
}
Edit = tuple[str, str, str]  # file, text, replacement


@dataclass(frozen=True)
class Program:
    """The field `words` contains the arguments of `python`. The field `spawns` is True if the program starts its ranks itself.
    The field `times` contains options of `trace replay` that select the virtual GPUs. The field `native_words` contains options
    that the program needs on CPUs."""

    project: str
    name: str
    words: str
    ranks: int = 2
    folder: str = "."
    native: bool = True
    values: str = "compute"
    spawns: bool = False
    times: str = "--trace p100-no-cudnn"
    edits: tuple[Edit, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    native_environment: dict[str, str] = field(default_factory=dict)
    native_words: str = ""


def _of_examples() -> list[Program]:
    ddp, fsdp, parallel = (f"distributed/{name}" for name in ("ddp-tutorial-series", "FSDP2", "tensor_parallelism"))
    imagenet = "main.py --dummy -a resnet18 --epochs 1 -b 8 --workers 0 --multiprocessing-distributed --world-size 1 --rank 0"
    fewer_images = (
        ("imagenet/main.py", "1281167", "32"),
        ("imagenet/main.py", "50000", "16"),
        ("imagenet/main.py", "224, 224", "64, 64"),
    )
    # a single RPC call runs the whole training, and RPC calls time out after 60 s
    fewer_epochs = (("distributed/rpc/ddp_rpc/main.py", "range(100)", "range(5)"),)
    of_rpc = {"rnn": 0, "pipeline": 2, "ddp_rpc": 2}
    options = ("", " --explicit-prefetching", " --mixed-precision", " --dcp-api")
    return [
        Program("examples", "ddp", "example.py", folder="distributed/ddp"),
        Program("examples", "ddp-tutorial-series/multigpu", "multigpu.py 3 1", folder=ddp, spawns=True),
        Program("examples", "ddp-tutorial-series/multigpu_torchrun", "multigpu_torchrun.py 3 1", folder=ddp),
        Program("examples", "ddp-tutorial-series/multinode", "multinode.py 3 1", folder=ddp),
        *(Program("examples", f"FSDP2{option}", f"example.py{option}", folder=fsdp) for option in options),
        Program("examples", "tensor_parallel_example", "tensor_parallel_example.py", folder=parallel),
        Program("examples", "sequence_parallel_example", "sequence_parallel_example.py", folder=parallel),
        Program("examples", "fsdp_tp_example", "fsdp_tp_example.py", 4, folder=parallel, native=False, values="recorded"),
        Program(
            "examples",
            "minGPT-ddp",
            "main.py trainer_config.max_epochs=1 data_config.truncate=0.01 data_config.path=data/input.txt"
            " gpt_config.n_layer=2 gpt_config.n_head=2 gpt_config.n_embd=64 trainer_config.batch_size=16"
            " +gpt_config.attn_pdrop=0",
            folder="distributed/minGPT-ddp/mingpt",
        ),
        Program(
            "examples",
            "imagenet",
            f"{imagenet} --dist-url tcp://127.0.0.1:29577",
            folder="imagenet",
            spawns=True,
            edits=fewer_images,
        ),
        Program(
            "examples",
            "rpc/batch/parameter_server",
            "parameter_server.py",
            folder="distributed/rpc/batch",
            values="recorded",
            spawns=True,
            native=False,
            edits=(("distributed/rpc/batch/parameter_server.py", "rpc_timeout=60", "rpc_timeout=600"),),
        ),
        *(
            Program(
                "examples",
                f"rpc/{name}",
                "main.py",
                count or 1,
                folder=f"distributed/rpc/{name}",
                spawns=True,
                native=False,
                edits=fewer_epochs if name == "ddp_rpc" else (),
            )
            for name, count in of_rpc.items()
        ),
        Program(
            "examples",
            "mnist_hogwild",
            "main.py --cuda --epochs 1",
            folder="mnist_hogwild",
            spawns=True,
            native=False,  # not comparable, because the ranks change the same parameters in any order
        ),
    ]


def _of_accelerate() -> list[Program]:
    folder = "src/accelerate/test_utils/scripts"
    names = "test_script test_sync test_ops test_distributed_data_loop test_ddp_comm_hook test_merge_weights test_cli".split()
    on_cpu = {"ACCELERATE_USE_CPU": "true"}
    by_launcher = Program(
        "accelerate",
        "test_notebook",
        "test_notebook.py",
        folder=folder,
        spawns=True,
        times="--gpu a100 --estimate --gpus 2",  # if RANK is set, the launcher assumes that torchrun started the process
        environment={"ACCELERATE_NUM_PROCESSES": "2"},
        native=False,
    )
    programs = [Program("accelerate", name, f"{name}.py", folder=folder, native_environment=on_cpu) for name in names]
    return [*programs, by_launcher]


def _of_trainer() -> list[Program]:
    words = "--output_dir out --report_to none --disable_tqdm 1"
    programs = dict.fromkeys(("worker_seed", "dispatch_batches", "eval_ddp", "training_parity"), words)
    programs["moe_aux_loss"] = "--output_dir out"
    return [
        Program("trainer", name, f"{name}.py {options}", native_environment={"ACCELERATE_USE_CPU": "true"})
        for name, options in programs.items()
    ]


def _of_lightning() -> list[Program]:
    fabric, basics = "examples/fabric", "examples/pytorch"
    fewer_images = {
        name: ((f"{basics}/basics/{name}.py", "[55000, 5000]", "[448, 64]"),)
        for name in ("autoencoder", "backbone_image_classifier")
    }
    by_cli = {"LT_CLI_USED": "1", "LT_DEVICES": "2"}
    trainer = "--trainer.max_epochs 1 --trainer.devices 2"
    return [
        Program(
            "lightning", "fabric/image_classifier", f"{fabric}/image_classifier/train_fabric.py --epochs 1", environment=by_cli
        ),
        Program("lightning", "fabric/kfold_cv", f"{fabric}/kfold_cv/train_fabric.py --epochs 1 --folds 2", environment=by_cli),
        Program(
            "lightning",
            "fabric/tensor_parallel",
            "train.py",
            4,
            folder=f"{fabric}/tensor_parallel",
            values="recorded",
            native=False,
        ),
        Program(
            "lightning",
            "pytorch/tensor_parallel",
            "train.py",
            4,
            folder="examples/pytorch/tensor_parallel",
            values="recorded",
            native=False,
        ),
        Program("lightning", "pytorch/bug_report_model", "examples/pytorch/bug_report/bug_report_model.py"),
        *(
            Program("lightning", f"pytorch/{name}", f"basics/{name}.py {trainer}", folder=basics, edits=edits)
            for name, edits in fewer_images.items()
        ),
    ]


def _of_torch() -> list[Program]:
    examples = {
        "fsdp_checkpoint_example": (("/scratch/{os.environ.get('LOGNAME', '')}", "checkpoints"),),
        "async_checkpointing_example": (
            ("~/{os.environ.get('LOGNAME', '')}", "checkpoints"),
            ("NUM_EPOCHS = 1000", "NUM_EPOCHS = 12"),
            ("FAULT_PERIOD = 25", "FAULT_PERIOD = 0"),  # no fault, because dcp.load without a checkpoint_id raises an error
        ),
    }
    return [
        Program("torch", name, f"{name}.py", spawns=True, native=False, edits=tuple((f"{name}.py", *edit) for edit in edits))
        for name, edits in examples.items()
    ]


def _of_deepspeed() -> list[Program]:
    gan = "--dataset fake --cuda --batchSize 8 --imageSize 64 --ngf 8 --ndf 8 --workers 0"
    weights = (
        "train.py --hidden_dim 64 --num_layers 2 --num_heads 4 --vocab_size 128 --batch_size 2 --seq_length 32 --num_steps 4"
    )
    configs = ("baseline", "bf16_full")
    cifar = "training/cifar/cifar10_deepspeed.py"
    cifar_stages = {f"stage {stage}": f"--stage {stage} --dtype {'bf16' if stage else 'fp32'}" for stage in range(4)}
    pipeline = "training/pipeline_parallelism"
    small_images = tuple(
        (
            cifar,
            f'datasets.CIFAR10(\n        root="./data", train={train}, download=True, transform',
            f"datasets.FakeData({count}, (3, 32, 32), 10, transform",
        )
        for train, count in ((True, 64), (False, 200))
    )
    of_pipeline = (
        (f"{pipeline}/train.py", "datasets.CIFAR10(root=dl_path,", "datasets.FakeData(64, (3, 32, 32), 10,"),
        (f"{pipeline}/train.py", "train=True,", ""),
        (f"{pipeline}/train.py", "download=True,", ""),
        (f"{pipeline}/ds_config.json", '"train_batch_size" : 256', '"train_batch_size" : 8'),
        (f"{pipeline}/ds_config.json", '_per_gpu" : 8', '_per_gpu" : 2'),
        (f"{pipeline}/ds_config.json", '"lr": 0.001', '"torch_adam": true, "lr": 0.001'),
    )
    on_cpu = {"DS_ACCELERATOR": "cpu"}
    states = "offload_states.py --hidden_dim 64 --iteration 2 --warmup 1"
    return [
        Program(
            "deepspeed",
            "gan/gan_deepspeed_train",
            f"gan_deepspeed_train.py {gan} --deepspeed_config gan_deepspeed_config.json",
            folder="training/gan",
            native_environment=on_cpu,
            edits=(("training/gan/utils.py", 'default=-1, help="local', 'default=os.environ["LOCAL_RANK"], help="local'),),
        ),
        *(
            Program(
                "deepspeed",
                f"bf16_master_weight {name}",
                f"{weights} --deepspeed_config configs/{name}.json",
                folder="training/bf16_master_weight",
                native_environment=on_cpu,
                edits=((f"training/bf16_master_weight/configs/{name}.json", '"lr": 1e-4', '"torch_adam": true, "lr": 1e-4'),),
            )
            for name in configs
        ),
        *(
            Program(
                "deepspeed",
                f"offload_states {kind}".strip(),
                f"{states} {options}",
                folder="training/offload_states",
                native=False,
            )
            for kind, options in {"": "", "pinned": "--pin_memory --non_blocking"}.items()
        ),
        *(
            Program(
                "deepspeed",
                f"cifar {name}",
                f"cifar10_deepspeed.py --deepspeed --epochs 1 {options}",
                folder="training/cifar",
                native_environment=on_cpu,
                edits=(*small_images, (cifar, '"lr": 0.001,', '"torch_adam": True, "lr": 0.001,')),
            )
            for name, options in cifar_stages.items()
        ),
        *(
            Program(
                "deepspeed",
                f"pipeline_parallelism {name}",
                f"train.py --deepspeed --deepspeed_config ds_config.json -p {stages} -s 2",
                folder=pipeline,
                native_environment=on_cpu,
                edits=of_pipeline,
            )
            for name, stages in {"two stages": 2, "data parallel": 0}.items()
        ),
    ]


def _of_megatron() -> list[Program]:
    loop = "examples/run_simple_mcore_train_loop.py"
    single = ((loop, "tensor_model_parallel_size=2", "tensor_model_parallel_size=1"),)
    return [
        Program("megatron", "run_simple_mcore_train_loop", loop, native=False),
        Program("megatron", "run_simple_mcore_train_loop data parallel", loop, native=False, edits=single),
    ]


def _of_torchtitan() -> list[Program]:
    """Return the integration tests of torchtitan's features."""
    few_tokens = "--training.num_tokens_per_microbatch_per_dp_rank 128 --training.max_context_length 64"
    run = f"-m torchtitan.train --module torchtitan_recipes.tests.features --training.steps 2 {few_tokens}"
    two = (
        "default compile compile_sac_op tp2 ce_loss_tp2 tp2_no_sp tp2_compile full_checkpoint_save hf_checkpoint_save"
        " last_save_model_only_bf16 pp2_1f1b optimizer_bf16_states fsdp_reshard_always gradient_accumulation sft"
    )
    # The configurations of context parallelism and zero-bubble pipelines need a newer PyTorch than 2.13.
    four = (
        "fsdp2_pp2_1f1b tp2_pp2_gpipe pp4_interleaved_1f1b"
        " pp4_interleaved_1f1b_layers_per_stage ddp4 hsdp2x2"
    )
    counts = {f"llama3_debugmodel_{name}": 2 for name in two.split()} | {
        f"llama3_debugmodel_{name}": 4 for name in four.split()
    }
    return [
        Program(
            "torchtitan",
            name,
            f"{run} --config {name}",
            count,
            environment={"SAME_START": "1"},
            native="compile" not in name,  # compiled code rounds bfloat16 numbers in different places than eager code
            native_words="--training.disable_cuda_graphs",
        )
        for name, count in counts.items()
    ]


def _of_elastic() -> list[Program]:
    """Return the elastic programs. The second program fails once after its first epoch, and then torchrun's agent restarts all
    ranks."""
    file, words = "examples/imagenet/main.py", "main.py data -b 2 --checkpoint-file out/checkpoint.pth"
    small = (
        (file, "datasets.ImageFolder(\n        traindir,", "datasets.FakeData(\n        8, (3, 64, 64), 10,"),
        (file, "datasets.ImageFolder(\n            valdir,", "datasets.FakeData(\n            4, (3, 64, 64), 10,"),
        (file, "RandomResizedCrop(224)", "RandomResizedCrop(32)"),
        (file, "CenterCrop(224)", "CenterCrop(32)"),
    )
    failure = 'if epoch == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":\n            raise RuntimeError("a fault")'
    fails = (file, "        state.epoch = epoch\n", f"        {failure}\n        state.epoch = epoch\n")
    agent = "-m torch.distributed.run --nproc-per-node 2 --max-restarts 1"
    return [
        Program("elastic", "imagenet", f"{words} --epochs 1", folder="examples/imagenet", edits=small),
        Program(
            "elastic",
            "imagenet, restarted",
            f"{agent} {words} --epochs 2",
            folder="examples/imagenet",
            spawns=True,
            native=False,  # the checkpoint is loaded with map_location="cuda:0"
            edits=(*small, fails),
        ),
    ]


def _of_ignite() -> list[Program]:
    options = "--num_epochs 1 --num_warmup_epochs 0 --batch_size 8 --num_workers 0 --data_path data --output_path out"
    file = "examples/cifar10/utils.py"
    data = (
        (file, "datasets.CIFAR10(root=path, train=True, download=download,", "datasets.FakeData(32, (3, 32, 32), 10,"),
        (file, "datasets.CIFAR10(root=path, train=False, download=False,", "datasets.FakeData(16, (3, 32, 32), 10,"),
    )
    return [Program("ignite", "cifar10", f"main.py run --backend nccl {options}", folder="examples/cifar10", edits=data)]


def _of_nanogpt() -> list[Program]:
    sizes = "--n_layer=2 --n_head=2 --n_embd=64 --block_size=32 --batch_size=4 --gradient_accumulation_steps=4"
    words = f"train.py --max_iters=5 --eval_iters=1 --warmup_iters=2 --dtype=float32 {sizes}"
    data = tuple(
        ("train.py", f"np.memmap(os.path.join(data_dir, '{name}.bin'), dtype=np.uint16, mode='r')", "np.arange(9999) % 65")
        for name in ("train", "val")
    )
    names = {"train": "--compile=False", "train, float16": "--compile=False --dtype=float16", "train, compiled": ""}
    eager = {"TORCHDYNAMO_DISABLE": "1"}
    return [
        Program("nanoGPT", name, f"{words} {option}", edits=data, native_environment=eager)
        for name, option in names.items()
    ]


def _of_pippy() -> list[Program]:
    """Return pipelines of transformers with random weights."""
    folder = "examples/huggingface"
    sizes = {
        "bert": "BertConfig(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_hidden_layers=2",
        "gpt2": "GPT2Config(n_embd=64, n_head=2, n_layer=2, use_cache=False",
    }
    return [
        Program(
            "pippy",
            f"huggingface/{name}",
            f"pippy_{name}.py",
            folder=folder,
            values="recorded",
            native=False,
            edits=((f"{folder}/pippy_{name}.py", f"{config.partition('(')[0]}()", f"{config})"),),
        )
        for name, config in sizes.items()
    ]


def _with_small_images(script: str, images: str) -> tuple[Edit, ...]:
    return (
        (script, "datasets.ImageFolder(\n        traindir,", images),
        (script, "RandomResizedCrop(224", "RandomResizedCrop(64"),
    )


def _of_self_supervised() -> list[Program]:
    twins = "main.py data --workers 0 --epochs 1 --batch-size 8 --projector 32-32"
    simsiam = (
        "main_simsiam.py data -a resnet18 -j 0 --epochs 1 -b 8 --dim 32 --pred-dim 16 --multiprocessing-distributed"
        " --dist-url tcp://127.0.0.1:29578 --world-size 1 --rank 0"
    )
    images = "datasets.FakeData(8, (3, 64, 64), 10, "
    smaller = ("main.py", "resnet50(zero_init", "resnet18(zero_init"), ("main.py", "[2048]", "[512]")
    more = images.replace("8", "24", 1)  # three steps
    folders = ("main.py", "torchvision.datasets.ImageFolder(args.data / 'train', ", f"torchvision.{more}")
    without_float16 = [("main.py", f"{name}()", f"{name}(enabled=False)") for name in ("GradScaler", "autocast")]
    return [
        Program("barlowtwins", "main", twins, spawns=True, edits=(folders, *smaller, *without_float16)),
        Program(
            "simsiam",
            "main_simsiam",
            simsiam,
            spawns=True,
            edits=_with_small_images("main_simsiam.py", images),
        ),
    ]


def _of_vision() -> list[Program]:
    images = "datasets.FakeData(16, (3, 64, 64), 10, "
    moco = (
        "main_moco.py data -a resnet18 -j 0 --epochs 1 -b 8 --moco-dim 32 --moco-k 64 --multiprocessing-distributed"
        " --dist-url tcp://127.0.0.1:29579 --world-size 1 --rank 0"
    )
    dino = (
        "main_dino.py --arch vit_tiny --patch_size 16 --epochs 1 --warmup_epochs 0 --warmup_teacher_temp_epochs 0"
        " --batch_size_per_gpu 4 --num_workers 0 --use_fp16 false --out_dim 64 --local_crops_number 2"
        " --drop_path_rate 0 --optimizer sgd --output_dir out"
    )
    timm = (
        "train.py --dataset torch/mnist --data-dir data --model resnet18 --num-classes 10 --input-size 1 28 28 --mean 0.1"
        " --std 0.3 --epochs 1 -b 64 --workers 1 --output out"
    )
    clip = (
        "-m open_clip_train.main --dataset-type synthetic --train-num-samples 32 --batch-size 4 --epochs 1 --warmup 1"
        " --workers 0 --precision fp32 --model ViT-B-32"
    )
    is_there = "assert torch.cuda.is_available(),"
    config = "src/open_clip/model_configs/ViT-B-32.json"
    sizes = (("layers", 12, 2), ("width", 768, 64), ("width", 512, 64), ("heads", 8, 2))
    kinds = {"": "", "local loss": "--local-loss --gather-with-grad", "accumulated": "--accum-freq 2"}
    data, color = "src/open_clip_train/data.py", "(37 * idx % 256, 91 * idx % 256, 53 * idx % 256)"
    smaller = (
        *((config, f'"{name}": {size}', f'"{name}": {by}') for name, size, by in sizes),
        # With equal images and texts, all gradients would be 0.
        (data, "self.transform(self.image)", f'self.transform(Image.new("RGB", self.image_size, {color}))'),
        (data, "self.preprocess_txt(self.caption)", 'self.preprocess_txt(f"{self.caption} {idx}")'),
    )
    return [
        Program(
            "moco",
            "main_moco",
            moco,
            spawns=True,
            edits=(
                *_with_small_images("main_moco.py", images),
                ("main_moco.py", "correct[:k].view(-1)", "correct[:k].reshape(-1)"),
            ),
        ),
        Program(
            "dino",
            "main_dino",
            dino,
            edits=(
                ("main_dino.py", "datasets.ImageFolder(args.data_path, ", images),
                ("main_dino.py", 'torch.hub.list("facebookresearch/xcit:main")', "[]"),
                ("main_dino.py", "fix_random_seeds(args.seed)", 'fix_random_seeds(args.seed), __import__("random").seed(0)'),
            ),
        ),
        Program("timm", "train", timm, edits=(("timm/utils/distributed.py", is_there, "assert True,"),)),
        *(
            Program("openclip", f"train {kind}".strip(), f"{clip} {options}", folder="src", edits=smaller)
            for kind, options in kinds.items()
        ),
        Program("mleng", "torch-distributed-gpu-test", "debug/torch-distributed-gpu-test.py"),
    ]


def _small_gpt2(file: str) -> tuple[tuple[str, str, str], ...]:
    """Return edits that make a GPT-2 script train a small model on a fixed sequence of tokens, instead of a downloaded one."""
    return (
        (file, "n_layer=12, n_head=12, n_embd=768", "n_layer=2, n_head=2, n_embd=64"),
        (file, "sorted(glob.glob(filename_pattern))", '["tokens"]'),
        (file, "_peek_data_shard(fname)", "9999"),
        (file, "_load_data_shard(self.files[self.current_shard])", "np.arange(9999) % 65"),
    )


def _of_llmc() -> list[Program]:
    file = "train_gpt2.py"
    words = (
        f"{file} --model d12 --batch_size 2 --sequence_length 32 --total_batch_size 256 --num_iterations 5 --dtype float32"
        " --write_tensors 0 --overfit_single_batch 0"
    )
    edits = (
        *_small_gpt2(file),
        (file, 'tiktoken.get_encoding("gpt2")', "None"),
        (file, "assert torch.cuda.is_available(),", "assert True,"),
    )
    kinds = {"": "", "ZeRO": "--zero_stage 1"}
    return [Program("llmc", f"train_gpt2 {kind}".strip(), f"{words} {options}", edits=edits) for kind, options in kinds.items()]


def _of_tutorials() -> list[Program]:
    """Return programs that implement data, tensor and optimizer parallelism with collectives instead of PyTorch's modules."""
    ddp, tensors = "mlsys/train_ddp.py", "mlsys/train_tp.py"
    words = "[{'text': str(i)} for i in range(64)]"
    tokens = "type('Tokens', (), {'pad_token': 'x', 'vocab_size': 65, 'pad_token_id': -1, '__call__': lambda self, texts, **_:"
    tokens = f"{tokens} {{'input_ids': torch.tensor([[(int(text) * 7 + at) % 65 for at in range(17)] for text in texts])}}}})()"
    sizes = "--len_dataset 64 --batch_size 4 --epochs 1 --seq_len 17 --hidden_dim 32 --nlayers 2"
    images, nanogpt = "datasets.FakeData(16, (3, 64, 64), 10, ", "train_gpt2.py"
    lengths = ("sequence_length", 1024, 32), ("num_iterations", 6200, 5), ("val_tokens", 10485760, 256)
    shorter = ("batch_size", "8*64", 8), ("device_batch_size", 64, 2), *lengths
    return [
        Program(
            "moddednanogpt",
            "2024-10-10_Muon",
            nanogpt,
            edits=(
                *((nanogpt, f"    {name} : int = {value}", f"    {name} : int = {by}") for name, value, by in shorter),
                *_small_gpt2(nanogpt),
                (nanogpt, "['nvidia-smi']", "['true']"),
                (nanogpt, "assert torch.cuda.is_available()", ""),
                (nanogpt, "dtype=torch.bfloat16", "enabled=False"),
                (nanogpt, "bfloat16()", "float()"),
            ),
            native_environment={"TORCHDYNAMO_DISABLE": "1"},
        ),
        Program("beyond", "mlsys/comms", "mlsys/comms.py", ranks=4),
        Program(
            "beyond",
            "mlsys/train_ddp",
            f"{ddp} {sizes}",
            edits=(
                (ddp, "from datasets import load_dataset", ""),
                (ddp, 'load_dataset("roneneldan/TinyStories")["train"].take(len_dataset)', words),
                (ddp, "GPT2Tokenizer.from_pretrained('gpt2')", tokens),
                (ddp, "r, wsz = init()", "r, wsz = init(); torch.manual_seed(0)"),
                (ddp, "dropout=0.1", "dropout=0"),
            ),
        ),
        Program(
            "beyond",
            "mlsys/train_tp",
            tensors,
            ranks=4,
            edits=(
                (tensors, "B, S, D = 8, 1024, 8192", "B, S, D = 2, 16, 256"),
                (tensors, "depth = 12", "depth = 2"),
                (tensors, "range(10_000)", "range(5)"),
                (tensors, "torch.bfloat16", "torch.float32"),
            ),
        ),
        *(
            Program(
                "tczhangzhi",
                name,
                f"{name}.py --data data -a resnet18 --epochs 1 -b 8 --seed 1",
                spawns=spawns,
                edits=(
                    (f"{name}.py", "datasets.ImageFolder(\n        traindir,", images),
                    (f"{name}.py", "datasets.ImageFolder(\n        valdir,", images),
                    (f"{name}.py", "RandomResizedCrop(224", "RandomResizedCrop(64"),
                    (f"{name}.py", "correct[:k].view(-1)", "correct[:k].reshape(-1)"),
                    *(((f"{name}.py", "default=-1,", "default=int(os.environ['LOCAL_RANK']),"),) if not spawns else ()),
                ),
            )
            for name, spawns in {"distributed": False, "multiprocessing_distributed": True}.items()
        ),
    ]


PROGRAMS = [
    *_of_examples(),
    *_of_accelerate(),
    *_of_trainer(),
    *_of_lightning(),
    *_of_deepspeed(),
    *_of_megatron(),
    *_of_torchtitan(),
    *_of_torch(),
    *_of_elastic(),
    *_of_ignite(),
    *_of_nanogpt(),
    *_of_pippy(),
    *_of_self_supervised(),
    *_of_vision(),
    *_of_llmc(),
    *_of_tutorials(),
]
