"""Devices that are not there, precision, threads, sizes that no machine has, numbers that run away."""

from __future__ import annotations

from tests.attacks.attack import Attack, goes_on, refused


def words(name: str, words: str, says: str) -> Attack:
    """Expect a refusal of a run."""
    return refused(name, f"esper.train $tiny {words}", says)


CHOICES = r"devices must be auto, cpu, the index of a CUDA device, or a list such as \[0,1\] or \[cpu,cpu\]; got "

ATTACKS = [
    words("two GPUs that are not there", "devices=[0,1]", r"devices=\[0,1\]: 0 is not there; .*devices=cpu"),
    words("a GPU that is not there", "devices=0", "devices=0: 0 is not there; .*devices=cpu"),
    words("a GPU by its long name", "devices=cuda:0", "devices=cuda:0: 0 is not there; .*devices=cpu"),
    words("a device of Apple's", "devices=mps", f"{CHOICES}mps"),
    words("a device of no number", "devices=cuda", f"{CHOICES}cuda"),
    words("a device below zero", "devices=-1", f"{CHOICES}-1"),
    words("no device", "devices=[]", f"{CHOICES}an empty list"),
    words("null for a device", "devices=null", CHOICES),
    words("a GPU and a CPU", "devices=[cpu,0]", "mixes GPUs and CPUs: ranks of one run use one kind"),
    words("one GPU twice", "devices=[0,0]", "names GPU 0 more than once"),
    words("more ranks than environments", "devices=[cpu,cpu,cpu]", "gives 3 ranks but trainer.num_envs is 2"),
    refused("all GPUs are hidden", "CUDA_VISIBLE_DEVICES= esper.train $tiny devices=0", "CUDA_VISIBLE_DEVICES is ''"),
    words("precision misspelt", "amp=fp17", r"amp: unknown 'fp17' \(did you mean 'fp16'\?\)"),
    words("threads below zero", "num_threads=-1", "num_threads must be at least 0, got -1"),
    words("more minibatches than environments", "ppo.num_minibatches=5", "num_minibatches"),
    words("reward misspelt", "reward.family=pair", r"reward.family: unknown 'pair' \(did you mean 'paired'\?\)"),
    words("mapping misspelt", "env.mapping=lop", r"env.mapping: unknown 'lop' \(did you mean 'loop'\?\)"),
    words("family misspelt", "'+instances.families={nope: 1}'", "instances.families.nope: .*nope"),
    words("family of no block", "'+instances.families={starved_9: 1}'", "instances.families.starved_9: "),
    words("weight below zero", "'+instances.families={intact: -1}'", "instances.families.intact"),
    words("crop below zero", "task.crop=-1", "task.crop must be at least 0, got -1"),
    words("crop larger than the image", "task.crop=99", "task.crop.*99"),
    goes_on("all devices there are", "esper.train $tiny devices=auto"),
    goes_on("two ranks", "esper.train $tiny devices=[cpu,cpu]"),
    goes_on("half precision", "esper.train $tiny amp=bf16"),
    goes_on("a learning rate of the host that diverges", "esper.train $tiny host.lr=1e30"),
    goes_on("a learning rate of the policy that diverges", "esper.train $tiny ppo.lr=1e30"),
]
