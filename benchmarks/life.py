"""A whole episode of one conv_light module: germinated, incubated, blended in and kept."""

from __future__ import annotations

from benchmarks.bare import BareLife, BareTraining, bare_network
from benchmarks.epochs import Epoch, Growing, each, germinate, stage_of
from benchmarks.records import Record
from benchmarks.scale import Scale
from benchmarks.settings import Setting, colour
from benchmarks.timing import interleave, records
from esper.growth import Incubation
from esper.growth.actions import TEMPO_EPOCHS, Tempo
from esper.growth.blending import BlendedModule

SECTION = "life"
FLOOR = "bare host"
BY_HAND = "auxiliary, by hand"
SLOT = 1
NUM_EPOCHS = 25
NUM_DEVELOPING = 1 + 6
"""Number of epochs in GERMINATED and TRAINING."""


def run(scale: Scale) -> list[Record]:
    """Time the whole episode, in milliseconds per environment and epoch."""
    setting = colour(scale.image_size, scale.image_batch)
    num_envs, rounds, num_epochs = scale.life
    alphas = _alphas()[:num_epochs]
    seconds = interleave(_contenders(setting, num_envs, alphas), rounds, warmup=0, clock=scale.clock)
    return records(
        seconds,
        section=SECTION,
        workload=f"{setting.name}: {len(alphas)} epochs",
        hosts=num_envs,
        floor=FLOOR,
        grown=BY_HAND,
        per=num_envs * len(alphas),
        samples=setting.samples,
    )


def _alphas() -> list[float]:
    """Return alpha for every epoch: isolation, a linear ramp of tempo STANDARD, then 1."""
    ramp = int(TEMPO_EPOCHS[Tempo.STANDARD])
    blending = [(epoch + 1) / ramp for epoch in range(ramp)]
    return [0.0] * NUM_DEVELOPING + blending + [1.0] * (NUM_EPOCHS - NUM_DEVELOPING - ramp)


def _contenders(setting: Setting, num_envs: int, alphas: list[float]) -> dict[str, Epoch]:
    bare = each([BareTraining(bare_network(setting.host), setting.loader) for _ in range(num_envs)])
    contenders: dict[str, Epoch] = {FLOOR: _repeated(bare, len(alphas)), BY_HAND: _by_hand(setting, num_envs, alphas)}
    for incubation in Incubation:
        contenders[f"Esper, loop, {incubation}"] = _esper(setting, num_envs, alphas, incubation)
    return contenders


def _repeated(epoch: Epoch, count: int) -> Epoch:
    def episode() -> None:
        for _ in range(count):
            epoch()

    return episode


def _by_hand(setting: Setting, num_envs: int, alphas: list[float]) -> Epoch:
    def episode() -> None:
        population = setting.population(num_envs, "loop")
        germinate(population, [SLOT])
        lives = []
        for env in range(num_envs):
            host = population.grown(env, [1.0] * len(setting.slot_ids))
            module = host.detach(setting.slot_ids[SLOT])
            assert isinstance(module, BlendedModule)
            lives.append(BareLife(host, SLOT, module.body, setting.loader))
        epoch = each(lives)
        for alpha in alphas:
            for life in lives:
                life.alpha = alpha
            epoch()

    return episode


def _esper(setting: Setting, num_envs: int, alphas: list[float], incubation: Incubation) -> Epoch:
    def episode() -> None:
        population = setting.population(num_envs, "loop")
        germinate(population, [SLOT])
        growing = Growing(setting.loader, population, setting.instances(num_envs))
        for alpha in alphas:
            growing.epoch(stage_of(population, alpha), incubation=incubation)

    return episode
