"""Words of the command line: keys, values, groups, names, Hydra's own flags."""

from __future__ import annotations

from tests.attacks.attack import Attack, goes_on, refused


def word(name: str, words: str, says: str) -> Attack:
    """Refuses words beside a preset."""
    return refused(name, f"esper.train +preset=smoke {words}", says)


ATTACKS = [
    goes_on("no words are wrong", "esper.train $tiny"),
    refused("preset misspelt", "esper.train +preset=smok", r"unknown 'smok' \(did you mean 'smoke'\?\); choose"),
    refused("preset empty", "esper.train +preset=", "preset: unknown ''; choose from cifar10, "),
    refused("preset without its plus", "esper.train preset=smoke", r"preset is added with a plus: \+preset=<name>"),
    word("task misspelt", "task=digit", r"task: unknown 'digit' \(did you mean 'digits'\?\); choose from cifar10, "),
    word("task of no name", "task=custom", "task: unknown 'custom'; choose from cifar10, digits, "),
    word("host misspelt", "host=nope", "host: unknown 'nope'; choose from cifar10, "),
    word("debug misspelt", "+debug=slow", "debug: unknown 'slow'; choose from fast"),
    word("sweep misspelt", "+sweep=nope", "sweep: unknown 'nope'; choose from "),
    word("key unknown", "+bogus=1", "unknown key 'bogus'; keys and sections: seed, devices"),
    word("key in the wrong place", "num_envs=8", r"unknown key 'num_envs' \(did you mean 'trainer.num_envs'\?\)"),
    word("key of a section misspelt", "ppo.clip_coeff=0.1", r"unknown key 'ppo.clip_coeff' \(did you mean 'clip_coef'"),
    word("key added by force", "++ppo.bogus=1", "unknown key 'ppo.bogus'; keys of ppo: lr, "),
    word("key of a host", "host.nope=3", "unknown key 'host.nope'; keys of host: name, lr, "),
    word("key of hydra", "hydra.nope=1", "unknown key 'hydra.nope'; keys of hydra: "),
    word("word without value", "trainer.num_envs", "cannot read 'trainer.num_envs': .*; say key=value"),
    word("two equals signs", "seed==3", "cannot read 'seed==3': .*; say key=value"),
    word("two values in one word", "seed=1=2", "cannot read 'seed=1=2': .*; say key=value"),
    word("bracket left open", "'host.widths=[8,8,8'", r"cannot read 'host.widths=\[8,8,8': "),
    word("text for a number", "ppo.lr=fast", "ppo.lr must be a number, got 'fast'"),
    word("fraction for a whole number", "trainer.num_envs=2.5", "trainer.num_envs must be a whole number, got '2.5'"),
    word("nothing for a number", "seed=", "seed must be a whole number, got ''"),
    word("truth for a number", "seed=true", "seed must be a whole number, got 'True'"),
    word("endless seed", "seed=1e400", "seed must be a whole number, got 'inf'"),
    word("seed below zero", "seed=-1", "seed must be at least 0, got -1"),
    word("null for a number", "ppo.lr=null", "ppo.lr: .*ppo.lr=null"),
    word("not a number", "ppo.lr=nan", "ppo.lr must be above 0, got nan"),
    word("infinite", "ppo.lr=inf", "ppo.lr must be above 0, got inf"),
    word("null for a section", "ppo=null", r"ppo: .*\(in ppo=null\)"),
    word("no blocks", "'host.widths=[]'", r"host.widths must name at least one block, got \[\]"),
    word("blocks that do not match", "'host.widths=[8,8]'", "host.kernel_sizes must have one entry per block"),
    word("block of no channels", "'host.widths=[0,8,8]'", r"host.widths\[0\] must be at least 1, got 0"),
    word("no environments", "trainer.num_envs=0", "trainer.num_envs must be at least 1, got 0"),
    word("no iterations", "trainer.num_iterations=0", "trainer.num_iterations must be at least 1, got 0"),
    word("name of another folder", """name="'../../x'" """, r"name must be a folder name without '/', got '../../x'"),
    word("name of a path", "name=/tmp/x", "name must be a folder name without '/', got '/tmp/x'"),
    word("name empty", "name=", "name must be a folder name without '/', got ''"),
    word("name of the folder above", "name=..", "name must be a folder name without '/', got '..'"),
    word("sweep without -m", "seed=1,2", "sweep.*--?m"),
    word("launcher misspelt", "hydra/launcher=nope", "hydra/launcher: unknown 'nope'; choose from basic, joblib, "),
    word("mode misspelt", "hydra.mode=nope", "hydra.mode: unknown 'nope'; choose from RUN, MULTIRUN"),
    word("configuration folder missing", "--config-dir nowhere", "--config-dir: no such folder 'nowhere'"),
    refused("bad word in --cfg", "esper.train --cfg job ppo.bogus=1", "unknown key 'ppo.bogus'; keys of ppo: lr"),
    word("custom host without target", "host=custom", "no value for host.target: say host.target=<value>"),
    refused("configuration misspelt", "esper.train --config-name nope", "--config-name: no nope.yaml among"),
    Attack(name="flag unknown", bash="esper.train --nope", says="unrecognized arguments: --nope", lines=9),
    Attack(name="flag without value", bash="esper.train --cfg", says="--cfg/-c: expected one argument", lines=9),
    Attack(name="flag with a wrong value", bash="esper.train -c x", says="choose from 'job', 'hydra', 'all'", lines=9),
    goes_on("help", "esper.train --help", "num_envs: ", runs={}),
    goes_on("help of hydra into a closed pipe", "esper.train --hydra-help | head -1", "Hydra", runs={}),
    goes_on("name with a blank", "esper.train $tiny 'name=a b'", runs={"outputs/a b": "finished"}),
]
