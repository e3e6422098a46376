"""Growing inside a population: isolation, birth, removal, optimizer state, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.blueprints import blueprint_ids
from esper.growth import Incubation
from esper.growth.actions import BlendAlgorithm
from esper.population import MAPPINGS, GrowthStage, Population, Samples, evaluate, train_epoch
from esper.population.stack import Stack, adam_step
from esper.population.training import part_gradients, plan_training
from esper.tasks.batches import TrainingSamples
from tests.population.growing import CNN_BLUEPRINTS, FAULTS, batch, nothing, orders, pool, populate, random_growth, stir
from tests.tiers import few

ALGORITHMS = list(BlendAlgorithm)


def train(population: Population, growth: GrowthStage, *, epochs: int = 1, incubation: str = "auxiliary") -> None:
    images, labels = pool()
    numbers = list(range(population.num_envs))
    for epoch in range(epochs):
        order = orders(numbers, 48, epoch)
        train_epoch(
            population, TrainingSamples(images, labels), order, growth, incubation=incubation, num_steps=3, lr=0.01
        )


def host_state(population: Population) -> list[Tensor]:
    stack = population.hosts
    return [tensor.detach().clone() for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]


def points(population: Population, alpha: Tensor) -> Tensor:
    images, labels = pool(50)
    weights = torch.ones(population.num_envs, len(labels))
    return evaluate(population, Samples(inputs=images, targets=labels, weights=weights), alpha)[0].points


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(3)
def test_an_isolated_module_leaves_every_host_and_its_optimizer_bit_equal(mapping: str, incubation: str) -> None:
    bare = populate(mapping, range(4))
    train(bare, nothing(4), epochs=3)
    # All blueprints and algorithms at once, in three of the four environments; the last is a mere neighbour.
    sites = [
        (environment, slot, CNN_BLUEPRINTS[(3 * environment + slot) % len(CNN_BLUEPRINTS)], ALGORITHMS[slot])
        for environment in range(3)
        for slot in range(3)
    ]
    grown = populate(mapping, range(4), sites)
    before = {key: stack.values.detach().clone() for key, stack in grown.modules.items()}
    stage = nothing(4)
    stage.developing[:3] = True
    train(grown, stage, epochs=3, incubation=incubation)
    for ours, theirs in zip(host_state(grown), host_state(bare), strict=True):
        assert torch.equal(ours, theirs)
    assert all(not torch.equal(stack.values, before[key]) for key, stack in grown.modules.items())
    assert torch.equal(points(grown, stage.alpha), points(bare, stage.alpha))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_blended_module_leaves_its_neighbours_bit_equal(mapping: str) -> None:
    bare, grown = populate(mapping, range(4)), populate(mapping, range(4))
    stage = nothing(4)
    grown.germinate(1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.GATE, torch.Generator().manual_seed(0))
    stage.alpha[1, 1] = 0.7
    train(bare, nothing(4), epochs=2)
    train(grown, stage, epochs=2)
    neighbours = [0, 2, 3]
    for ours, theirs in zip(host_state(grown), host_state(bare), strict=True):
        assert torch.equal(ours[neighbours], theirs[neighbours])
        assert ours.shape[1] == 1 or not torch.equal(ours[1], theirs[1])  # the module does act on its own host


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mapping", MAPPINGS)
@few(4)
def test_every_blueprint_is_the_identity_at_birth_and_all_its_parameters_move(
    mapping: str, algorithm: BlendAlgorithm
) -> None:
    number = len(CNN_BLUEPRINTS)
    intact = [len(FAULTS) * row for row in range(number)]  # a dead channel would leave its weights without gradient
    sites = [(row, 1, blueprint, algorithm) for row, blueprint in zip(intact, CNN_BLUEPRINTS, strict=True)]
    population = populate(mapping, intact, sites)
    on = nothing(number)
    on.alpha[:, 1] = 1.0
    torch.testing.assert_close(points(population, on.alpha), points(population, nothing(number).alpha))
    born = [stack.values.detach().clone() for stack in population.stacks()[1:]]
    train(population, on, epochs=2)
    for stack, before in zip(population.stacks()[1:], born, strict=True):
        moved = stack.program.layout.unflatten(stack.values != before)
        for name, elements in moved.items():
            # A channel that is dead in the host may leave a few weights without gradient, but no tensor.
            assert elements.flatten(1).double().mean(dim=1).min() > 0.5, name


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_after_a_cull_the_host_computes_what_its_weights_compute_alone(mapping: str) -> None:
    sites, growth = random_growth(5, 4)
    population = populate(mapping, range(4), sites)
    stir(population)
    train(population, growth)
    for environment, slot, *_ in sites:
        population.remove(environment, slot)
    empty = populate(mapping, range(4))
    empty.reset(range(4), population.hosts.values.detach(), torch.ones_like(population.hosts.values))
    assert torch.equal(points(population, nothing(4).alpha), points(empty, nothing(4).alpha))
    assert not population.modules
    assert not population.gates


@pytest.mark.parametrize("isolated", [True, False])
def test_gradients_reach_the_host_through_a_blended_module_unless_it_is_isolated(isolated: bool) -> None:
    site = (0, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)
    population = populate("loop", [0], [site], torch.float64)
    stir(population)
    stage = nothing(1)
    stage.alpha[0, 1] = 1.0
    stage.isolated[0, 1] = isolated
    x, y = batch([0])
    plan = plan_training(population, stage, "auxiliary")
    found = part_gradients(population, plan, x, y, stacks=population.stacks())

    grown = population.grown(0, [0.0, 1.0, 0.0])
    h = grown.forward_to("r0c1", x[0])
    module = grown.attached["r0c1"]
    # Isolated: the host's own feature passes the gradient as if the module's change were a constant.
    standing = h + (module(h.detach()) - h.detach()) if isolated else module(h)
    nn.functional.cross_entropy(grown.segments[3](grown.segments[2](standing)), y[0]).backward()
    expected = torch.cat([parameter.grad.flatten() for _, parameter in grown.named_host_parameters()])
    torch.testing.assert_close(found.gradients[0][0], expected, rtol=1e-9, atol=1e-12)
    assert expected[:72].abs().max() > 0  # the first block learns under a fully blended module either way


def test_straight_through_trains_a_module_as_if_its_output_stood_there() -> None:
    site = (0, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.MULTIPLY)
    population = populate("loop", [0], [site], torch.float64)
    stir(population)
    stage = nothing(1)
    stage.developing[0, 1] = True
    x, y = batch([0])
    plan = plan_training(population, stage, "straight_through")
    found = part_gradients(population, plan, x, y, stacks=population.stacks())

    grown = population.grown(0, [0.0, 1.0, 0.0])
    module = grown.detach("r0c1")
    h = grown.forward_to("r0c1", x[0]).detach().requires_grad_()
    loss = nn.functional.cross_entropy(grown.forward_from("r0c1", h), y[0])
    (signal,) = torch.autograd.grad(loss, h)  # of the host's own values
    module(h.detach()).backward(signal)
    expected = torch.cat([parameter.grad.flatten() for parameter in module.body.parameters()])
    torch.testing.assert_close(found.gradients[1][0], expected, rtol=1e-9, atol=1e-12)


def test_developing_modules_of_one_host_do_not_see_each_other() -> None:
    """The signal of one probe is the same whether or not another runs beside it: previews are not confounded."""
    both = [(0, 0, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD), (0, 2, CNN_BLUEPRINTS[1], BlendAlgorithm.GATE)]
    x, y = batch([0])
    gradients = []
    for sites in (both, both[1:]):
        population = populate("grouped", [0], sites, torch.float64)
        stir(population)
        stage = nothing(1)
        for _, slot, *_ in sites:
            stage.developing[0, slot] = True
        plan = plan_training(population, stage, "auxiliary")
        result = part_gradients(population, plan, x, y, stacks=population.stacks())
        gradients.append(result.gradients[list(population.modules).index((2, CNN_BLUEPRINTS[1])) + 1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num_developing", [1, 2])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_incubated_rows_leave_all_others_bit_equal(mapping: str, num_envs: int, num_developing: int) -> None:
    """They run beside the hosts' rows and through the same blended modules."""
    kinds = [kind for kind in CNN_BLUEPRINTS if blueprint_ids()[kind] in ("conv_light", "norm")]
    blended = [(env, slot, kinds[(env + slot) % 2], BlendAlgorithm.ADD) for env in range(num_envs) for slot in (0, 2)]
    beside = [(env, 1, kinds[0], BlendAlgorithm.ADD) for env in range(min(num_envs, num_developing))]
    population = populate(mapping, range(num_envs), [*blended, *beside])
    stir(population)
    x, y = batch(range(num_envs))
    found = []
    for develops in (False, True):
        stage = nothing(num_envs)
        stage.alpha[:, [0, 2]] = 1.0
        stage.developing[: len(beside), 1] = develops
        plan = plan_training(population, stage, "auxiliary")
        result = part_gradients(population, plan, x, y, stacks=population.stacks())
        found.append((result.loss, dict(zip(population.owners(), result.gradients, strict=True))))
    (loss, gradients), (loss_beside, gradients_beside) = found
    assert torch.equal(loss, loss_beside)
    assert gradients_beside[1, kinds[0]].any()
    for owner, gradient in gradients.items():
        assert owner[:1] == (1,) or torch.equal(gradient, gradients_beside[owner])


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_non_finite_module_ends_nothing_but_itself(mapping: str, incubation: str) -> None:
    sites = [(0, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD), (1, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)]
    population, healthy = populate(mapping, range(2), sites), populate(mapping, range(2), sites)
    with torch.no_grad():
        population.modules[1, CNN_BLUEPRINTS[0]].values[0, 0] = torch.nan
    stage = nothing(2)
    stage.developing[:, 1] = True
    train(population, stage, incubation=incubation)
    train(healthy, stage, incubation=incubation)
    assert torch.equal(population.hosts.values, healthy.hosts.values)
    assert population.finite().tolist() == [[True, False, True], [True, True, True]]
    ours, theirs = (one.modules[1, CNN_BLUEPRINTS[0]] for one in (population, healthy))
    torch.testing.assert_close(ours.values[1], theirs.values[1])
    assert ours.steps.flatten().tolist() == [0.0, 3.0]


def test_germination_and_removal_leave_the_optimizer_state_of_others_as_it_was() -> None:
    blueprint = CNN_BLUEPRINTS[0]
    sites = [(environment, 0, blueprint, BlendAlgorithm.GATE) for environment in (0, 1, 2)]
    population = populate("grouped", range(4), sites)
    stage = nothing(4)
    stage.developing[:3, 0] = True
    train(population, stage)
    stack, gates = population.modules[0, blueprint], population.gates[0]
    kept = [owner.exp_avg[owner.row(2)].clone() for owner in (stack, gates)]
    population.remove(1, 0)
    population.germinate(3, 0, blueprint, BlendAlgorithm.GATE, torch.Generator().manual_seed(0))
    for owner, before in zip((stack, gates), kept, strict=True):
        assert owner.environments == [0, 2, 3]
        assert torch.equal(owner.exp_avg[1], before)
        assert before.abs().max() > 0
        assert owner.steps.flatten().tolist() == [3.0, 3.0, 0.0]
        assert owner.exp_avg[2].abs().max() == 0


def test_a_change_of_algorithm_keeps_the_body_and_its_state_and_gives_or_takes_a_gate() -> None:
    population = populate("grouped", [0], [(0, 0, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)])
    stage = nothing(1)
    stage.alpha[0, 0] = 1.0
    train(population, stage)
    stack = population.modules[0, CNN_BLUEPRINTS[0]]
    values, moments, size = stack.values.clone(), stack.exp_avg.clone(), int(population.num_parameters()[0, 0])
    population.restyle(0, 0, BlendAlgorithm.GATE)
    assert int(population.num_parameters()[0, 0]) == size + 16
    train(population, stage)
    assert population.gates[0].exp_avg.abs().max() > 0
    population.restyle(0, 0, BlendAlgorithm.MULTIPLY)
    assert not population.gates
    assert int(population.num_parameters()[0, 0]) == size
    assert torch.equal(stack.steps, torch.full((1, 1), 6.0))
    assert values.shape == stack.values.shape
    assert moments.shape == stack.exp_avg.shape


def test_memory_of_modules_is_proportional_to_the_live_ones() -> None:
    population = populate("grouped", range(8))

    def numbers() -> int:
        return sum(
            stack.values.numel() + stack.exp_avg.numel() + stack.exp_avg_sq.numel() for stack in population.stacks()[1:]
        )

    assert numbers() == 0
    stream = torch.Generator().manual_seed(0)
    for environment in range(8):
        population.germinate(environment, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD, stream)
        assert numbers() == 3 * int(population.num_parameters().sum())
    for environment in range(8):
        population.remove(environment, 1)
        assert numbers() == 3 * int(population.num_parameters().sum())
    assert numbers() == 0


def test_a_reset_starts_one_environment_anew_and_no_other() -> None:
    sites, growth = random_growth(2, 3)
    population = populate("grouped", range(3), sites)
    train(population, growth)
    before = host_state(population)
    birth = populate("grouped", [1])
    population.reset([1], birth.hosts.values.detach(), birth.hosts.live)
    for ours, old, new in zip(host_state(population), before, host_state(birth), strict=True):
        assert torch.equal(ours[[0, 2]], old[[0, 2]])
        assert torch.equal(ours[1], new[0])
    assert (population.blueprint[1] == -1).all()
    assert (population.blueprint[0] >= 0).any()


def test_weights_that_do_not_exist_stay_zero_and_are_not_counted() -> None:
    population = populate("grouped", range(3))
    train(population, nothing(3), epochs=2)
    live = population.hosts.live
    assert live is not None
    assert (population.hosts.values[live == 0] == 0).all()
    assert population.num_host_parameters().tolist() == [1362, 918, 338]


def test_a_slot_holds_one_module_at_a_time() -> None:
    population = populate("grouped", [0], [(0, 1, CNN_BLUEPRINTS[0], BlendAlgorithm.ADD)])
    with pytest.raises(ValueError, match="r0c1 of environment 0 already has a module"):
        population.germinate(0, 1, CNN_BLUEPRINTS[1], BlendAlgorithm.ADD, torch.Generator())


class TestAdam:
    """One optimizer step for all rows is torch.optim.Adam for each."""

    def stack(self, rows: int, dtype: torch.dtype = torch.float64) -> Stack:
        population = populate("loop", range(rows), dtype=dtype)
        return population.hosts

    def test_rows_with_step_counts_of_their_own_equal_one_optimizer_each(self) -> None:
        stack = self.stack(3)
        stack.live = None
        parameters = [nn.Parameter(stack.values.detach()[row].clone()) for row in range(3)]
        optimizers = [torch.optim.Adam([parameter], lr=0.03) for parameter in parameters]
        for step in range(5):
            gradient = torch.randn(
                stack.values.shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            if step == 2:  # row 1 starts over
                fresh = torch.zeros_like(stack.values[:1])
                stack.restart(torch.tensor([1]), fresh, torch.ones_like(fresh))
                stack.live = None
                parameters[1].data.zero_()
                optimizers[1] = torch.optim.Adam([parameters[1]], lr=0.03)
            for row in range(3):
                parameters[row].grad = gradient[row].clone()
                optimizers[row].step()
            adam_step([stack], [gradient.clone()], lr=0.03)
        expected = torch.stack([parameter.detach() for parameter in parameters])
        torch.testing.assert_close(stack.values.detach(), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_row_is_equal_to_the_bit_whatever_other_rows_there_are_after_any_number_of_steps(
        self, dtype: torch.dtype
    ) -> None:
        """Vector instructions take rows in groups, and what is left over alone."""
        rows, alone = 27, (0, 15, 16, 26)
        together, apart = self.stack(rows, dtype), [self.stack(1, dtype) for _ in alone]
        for stack in (together, *apart):
            stack.values.detach().zero_()  # so that no small difference is rounded away
            stack.live = None
        frequencies = torch.arange(1.0, together.values.shape[1] + 1, dtype=dtype).expand_as(together.values)
        for step in range(400):
            gradient = torch.sin(step * frequencies)
            adam_step([together], [gradient.clone()], lr=0.03, max_grad_norm=1.0)
            for stack in apart:
                adam_step([stack], [gradient[:1].clone()], lr=0.03, max_grad_norm=1.0)
        for row, stack in zip(alone, apart, strict=True):
            assert torch.equal(together.values[row], stack.values[0])

    def test_clipping_is_by_owner(self) -> None:
        stack = self.stack(2)
        gradient = torch.ones_like(stack.values)
        gradient[1] *= 1e-3
        norms = adam_step([stack], [clipped := gradient.clone()], lr=0.1, max_grad_norm=1.0)
        assert norms[0][0] > 1.0 > norms[0][1]
        assert clipped[0].norm().item() == pytest.approx(1.0)
        live = stack.live
        assert live is not None
        assert torch.equal(clipped[1], gradient[1] * live[1])

    def test_a_row_whose_gradient_is_not_finite_keeps_everything(self) -> None:
        stack = self.stack(2)
        adam_step([stack], [torch.ones_like(stack.values)], lr=0.1)
        before = [tensor[0].clone() for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]
        gradient = torch.ones_like(stack.values)
        gradient[0, 3] = torch.inf
        norms = adam_step([stack], [gradient], lr=0.1, max_grad_norm=1.0)
        after = [tensor[0] for tensor in (stack.values, stack.exp_avg, stack.exp_avg_sq, stack.steps)]
        assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        assert stack.steps.flatten().tolist() == [1.0, 2.0]
        assert not norms[0][0].isfinite()
