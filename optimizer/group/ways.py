"""Ways to execute one fusion group: group tile, resident weights; priced to a hull.

An open way's members are ordinary layers on the regions that the group tile makes them compute
(fadiff.costmodel.group.fusion.plan_group), so each member's best mappings come from the same enumeration.
Open ways are tried in the order of a floor (infinite scratchpad) and skipped when the floor is
already above what is known, so only promising ones are enumerated.  Sets of resident weights are a tree:
all of them, then with fewer; no set has a lower floor than the larger one that it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain, combinations, count

import numpy as np

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.group.fusion import Member, ScheduleError, plan_group
from fadiff.costmodel.group.loop_setting import PLACES
from fadiff.costmodel.group.pipeline import obstacle_to_pipeline, places
from fadiff.costmodel.group.scratchpad import live_bytes
from fadiff.costmodel.group.tile_buffer import box_bytes
from fadiff.costmodel.mapping.mapping import LOOPS
from fadiff.costmodel.mapping.shape import Region, extents
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile
from fadiff.optimizer.group.hull import EMPTY, GroupHull, Way, above, merge, summed
from fadiff.optimizer.group.open_ways import GroupAtTile, OpenMember, OpenWay, Residents
from fadiff.optimizer.group.residency import OFF_CHIP, Surroundings
from fadiff.optimizer.group.spaces import GroupSpaces, TileFloors, Walks
from fadiff.optimizer.group.tiles import all_tiles, channel_tiles, groups_per_tile, halved_tiles, last_output
from fadiff.optimizer.layer.fronts import Floats, Front, FrontCache, minkowski
from fadiff.optimizer.layer.hull import lower_hull
from fadiff.optimizer.layer.loop_space import pins
from fadiff.optimizer.layer.space import LayerSpace, Rules


class GroupSolver:
    """Prices groups of one graph under one set of rules."""

    def __init__(
        self, graph: Graph, rules: Rules, cache: FrontCache, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.graph, self.rules, self.cache, self._stop = graph, rules, cache, stop
        self.spaces = GroupSpaces(graph, rules)
        self._alone: dict[tuple[str, Surroundings], GroupHull] = {}
        self._walks: dict[tuple[tuple[str, ...], tuple[GroupTile, ...]], Walks] = {}
        self._floors: dict[tuple[tuple[str, ...], Surroundings], TileFloors] = {}

    def alone(self, name: str, surroundings: Surroundings = OFF_CHIP) -> GroupHull:
        """A layer that is not fused.

        Raises:
            ScheduleError: not even the smallest tile fits, though nothing else is on chip.
        """
        if self.rules.counting.has_tile_buffer:
            surroundings = surroundings._replace(reserved=0)  # takes no room from a layer alone
        found = self._alone.get((name, surroundings))
        if found is None:
            found = self._alone[name, surroundings] = self._solve_alone(name, surroundings)
        return found

    def _solve_alone(self, name: str, surroundings: Surroundings) -> GroupHull:
        layer = self.graph.by_name[name]
        group = FusionGroup((name,), resident_tensors=surroundings.tensors)
        if not isinstance(layer, TensorCoreLayer):
            energy, latency = self.spaces.host_cost(group, plan_group(self.graph, group))
            return GroupHull.of(energy, latency, Way(group, (), ()))
        space = self.spaces.space(layer, plan_group(self.graph, group), group, False)
        if not self.rules.counting.has_tile_buffer:
            space = replace(space, reserved=surroundings.reserved)
        front = self.cache.front(space)
        if not len(front) and surroundings == OFF_CHIP:
            raise ScheduleError(
                f"{name}: no mapping fits target {self.rules.target.name}: even the smallest tile needs more "
                "scratchpad or accumulator than there is"
            )
        hulls = [summed(group, [(name, front)])]
        if self.rules.latency == "clock" and self.rules.keep_weights and space.site and space.site.units:
            run = replace(group, resident_weights=frozenset((name,)))
            for pinned in pins({name: (layer, space.bounds)}, self.rules.target.side):
                if pinned.tiles[name] == PLACES:
                    beside = space.beside(pinned, run)
                    hulls.append(summed(run, [(name, self.cache.front(beside))]))
        return merge(hulls)

    def space_alone(self, name: str) -> LayerSpace:
        """Of a layer on the array that is not fused."""
        layer, group = self.graph.by_name[name], FusionGroup((name,))
        assert isinstance(layer, TensorCoreLayer)
        return self.spaces.space(layer, plan_group(self.graph, group), group, False)

    def floor_alone(self, name: str, surroundings: Surroundings = OFF_CHIP) -> GroupHull:
        """Cost of an unfused layer with a scratchpad that holds everything."""
        layer = self.graph.by_name[name]
        if not isinstance(layer, TensorCoreLayer):
            return self.alone(name, surroundings)
        group = FusionGroup((name,), resident_tensors=surroundings.tensors)
        energy, latency = self.spaces.floor(
            self.spaces.space(layer, plan_group(self.graph, group), group, False)
        )
        return GroupHull.of(energy, latency, Way(group, (), ()))

    def channel_tiles(
        self, layers: tuple[str, ...], surroundings: Surroundings = OFF_CHIP
    ) -> tuple[GroupTile, ...]:
        """Tiles of some of the channels; none where a tile of all channels and pixels has room."""
        tiles, size = channel_tiles(self.graph, layers, self.rules), last_output(self.graph, layers)
        if not tiles or size is None:
            return ()
        whole = FusionGroup(layers, GroupTile(*size), resident_tensors=surroundings.tensors)
        try:
            room = self._room(whole, self.spaces.plan(whole), surroundings.reserved)
        except ScheduleError:
            return ()
        return tiles if room is None else ()

    def tile_floors(
        self,
        layers: tuple[str, ...],
        surroundings: Surroundings = OFF_CHIP,
        tiles: Iterable[GroupTile] | None = None,
    ) -> TileFloors:
        """Floors of group tiles (default: all, kept) that may have room."""
        if tiles is None and (layers, surroundings) in self._floors:
            return self._floors[layers, surroundings]
        try:
            walks = self._walk(layers, surroundings, tiles)
            floors = self.spaces.tile_floors(walks, layers, surroundings.tensors)
        except ScheduleError:
            return TileFloors.unknown([])
        found = floors
        if self.rules.counting.has_tile_buffer:
            found = floors.within(self.rules.target.tile_buffer_bytes - surroundings.reserved)
        if tiles is None:
            self._floors[layers, surroundings] = found
        return found

    def _walk(
        self, layers: tuple[str, ...], surroundings: Surroundings, tiles: Iterable[GroupTile] | None
    ) -> Walks:
        if tiles is not None:
            return self.spaces.walks(layers, tiles)
        some = self.channel_tiles(layers, surroundings)
        if (layers, some) not in self._walks:
            if self.rules.latency == "clock":
                tiles = halved_tiles(self.graph, layers)
            else:
                groups = groups_per_tile(self.graph, layers)
                tiles = all_tiles(*self.spaces.planner(layers).size, self.rules.tiling, groups)
            self._walks[layers, some] = self.spaces.walks(layers, chain(tiles, some))
        return self._walks[layers, some]

    def solve(
        self, floors: TileFloors, known: tuple[Floats, Floats], surroundings: Surroundings = OFF_CHIP
    ) -> GroupHull:
        """Hull of what beats `known` (the hull of the members unfused) somewhere.

        Every set of resident weights is tried with each tile, until it is time to stop.  Best first: tiles by
        their floors, ways of those reached by their own.
        """
        tiles, energy, latency, _ = floors
        # EDP of the floor and order of arrival, the floor, and a tile or residents at one.
        queue: list[tuple[float, int, tuple[float, float], FusionGroup | Residents]] = []
        arrival = count()
        bound = known

        def wait(
            floor: tuple[float, float],
            what: FusionGroup | Residents,
            turn: tuple[float, float] | None = None,
        ) -> None:
            if not above(bound, *floor):
                energy, latency = turn or floor
                heappush(queue, (energy * latency, next(arrival), floor, what))

        for i in np.flatnonzero(~above(known, energy, latency)).tolist():
            wait((float(energy[i]), float(latency[i])), tiles[i])
        best = EMPTY
        while queue and not self._stop():
            _, _, floor, what = heappop(queue)
            if above(bound, *floor):
                continue
            if isinstance(what, FusionGroup):
                run = replace(what, resident_tensors=surroundings.tensors)
                path = self._path(run, self.spaces.plan(run), surroundings.reserved)
                turn = None
                for residents in self._most_residents(path) if path else ():
                    floor = self._floor(residents)
                    turn = turn or floor  # weights that stay come after those of the tile that do not
                    wait(floor, residents, turn)
                continue
            hull = self._price(what, bound)
            if len(hull):
                best = merge((best, hull))
                e, lat = np.concatenate([bound[0], hull.energy]), np.concatenate([bound[1], hull.latency])
                keep = lower_hull(e, lat)
                bound = (e[keep], lat[keep])
            for residents in what.fewer():
                wait(self._floor(residents), residents)
        return best

    def _most_residents(self, path: GroupAtTile) -> Iterator[Residents]:
        """Sets of weights from which all others follow: all; of what loop units keep, each by itself."""
        if self.rules.latency != "clock":
            yield Residents(path, tuple(path.sizes))
            return
        yield Residents(path, ())
        members = {member.name: (member.layer, member.streamed.bounds) for member in path.members}
        runs = max((member.streamed.runs() for member in path.members), default=1)
        assert path.group.tile is not None
        again = runs > 1 or path.group.tile.K is not None  # parts of channels share cache lines
        # Otherwise a weight tile is loaded again only where the next one took its place: two that stay save
        # that, and leave no place for other members.
        many = (1, 2) if again else (1,) if len(members) == 1 else ()
        for names in chain.from_iterable(combinations(path.sizes, size) for size in many):
            for pinned in pins({name: members[name] for name in names}, self.rules.target.side):
                if again or sum(pinned.tiles.values()) == PLACES:
                    yield Residents(path, names, len(names), pinned)

    def pipelined_ways(self, run: FusionGroup) -> Iterator[Way]:
        """Vertices of all ways to run a pipelined group with its weights resident as it says, all its members
        on the array on loop units."""
        try:
            plan = plan_group(self.graph, run)
        except ScheduleError:
            return
        count = places(self.graph, run, plan)
        boxes = sum(n * box_bytes(self.graph, plan[name], self.rules.target) for name, n in count.items())
        whole = sum(self.graph.tensors[name].nbytes for name in run.resident_tensors)
        if obstacle_to_pipeline(self.graph, run, plan) or boxes + whole > self.rules.target.tile_buffer_bytes:
            return
        members = self._members(run, plan)
        path = GroupAtTile(run, plan, members, {}, dict.fromkeys(run.layers, 0), 0, (0.0, 0.0))
        staying = {m.name: (m.layer, m.streamed.bounds) for m in members if m.name in run.resident_weights}
        for pinned in pins(staying, self.rules.target.side) if staying else [None]:
            open_way = self._open_way(Residents(path, tuple(staying), len(staying), pinned))
            if open_way and all(space.site and space.site.units for _, space in open_way.spaces):
                ways = self._summed(open_way, open_way.spaces).ways
                yield from (way for way in ways if _is_on_loops(way))

    def most_resident(self, run: FusionGroup, plan: dict[str, Member]) -> OpenWay | None:
        """As many weights resident as leave room (clock: none); None if the fused tensors have none."""
        path = self._path(run, plan, 0)
        if path is None:
            return None
        if self.rules.latency == "clock":
            return self._open_way(Residents(path, ()))
        names = tuple(path.sizes)
        sets = (staying for many in range(len(names), -1, -1) for staying in combinations(names, many))
        return next(
            (open_way for staying in sets if (open_way := self._open_way(Residents(path, staying)))), None
        )

    def _path(self, run: FusionGroup, plan: dict[str, Member], reserved: int) -> GroupAtTile | None:
        """None if fused tensors have no room."""
        live = self._room(run, plan, reserved)
        if live is None:
            return None
        members = self._members(run, plan)
        able = members if self.rules.keep_weights else ()
        sizes = {m.name: self._resident_bytes(m.layer, plan[m.name].computed) for m in able}
        return GroupAtTile(run, plan, members, sizes, live, reserved, self.spaces.host_cost(run, plan))

    def _room(self, run: FusionGroup, plan: dict[str, Member], reserved: int) -> dict[str, int] | None:
        """Scratchpad bytes (profile hw: none) of fused tensors while each member runs; None if they, or those
        in the tile buffer, have no room beside `reserved` bytes of tensors that stay across groups."""
        if self.rules.counting.has_tile_buffer:
            fits = self._buffered_bytes(run, plan) <= self.rules.target.tile_buffer_bytes - reserved
            return dict.fromkeys(run.layers, 0) if fits else None
        live = live_bytes(self.graph, plan, self.rules.target)
        return live if max(live.values()) <= self._limit(reserved) else None

    def _limit(self, reserved: int) -> int:
        """Scratchpad rows (profile dosa: bytes) of a group."""
        counting = self.rules.counting
        size = counting.scratchpad_size(self.rules.target)
        return size if counting.has_tile_buffer else size - reserved

    def _members(self, run: FusionGroup, plan: dict[str, Member]) -> tuple[OpenMember, ...]:
        layers = (self.graph.by_name[name] for name in run.layers)
        return tuple(
            OpenMember(
                layer.name,
                layer,
                self.spaces.space(layer, plan, run, False),
                self.spaces.anywhere(layer, plan, run, True),
            )
            for layer in layers
            if isinstance(layer, TensorCoreLayer)
        )

    def _open_way(self, residents: Residents) -> OpenWay | None:
        """The open way that keeps these weights; None if they leave too little room."""
        path, staying, _, pinned = residents
        if self.rules.latency == "clock":
            if pinned is None:
                return OpenWay(path.group, tuple((m.name, m.streamed) for m in path.members), path.host)
            run = replace(path.group, resident_weights=frozenset(staying))
            spaces = tuple((m.name, m.streamed.beside(pinned, run)) for m in path.members)
            able = all(space.site and space.site.units for _, space in spaces)
            return OpenWay(run, spaces, path.host) if able else None
        limit, run = self._limit(path.reserved), path.group
        stay = sum(path.sizes[name] for name in staying)
        taken = [stay + path.live[m.name] for m in path.members]
        if stay > limit or any(size > limit for size in taken):
            return None
        spaces = tuple(
            (m.name, replace(space, reserved=size + path.reserved))
            for m, space, size in zip(path.members, path.spaces(staying), taken, strict=True)
        )
        return OpenWay(replace(run, resident_weights=frozenset(staying)), spaces, path.host)

    def _price(self, residents: Residents, known: tuple[Floats, Floats]) -> GroupHull:
        """Hull of one way: every member's front, summed.  Empty if its weights leave too little room, or
        if it would not beat `known` with all room there is for each member."""
        if residents.pinned and not self._may_improve(residents, known):
            return EMPTY
        open_way = self._open_way(residents)
        if open_way is None:
            return EMPTY
        if self.rules.latency == "clock":
            return self._summed(open_way, open_way.spaces)
        with_room = [(name, replace(space, reserved=0)) for name, space in open_way.spaces]
        best = self._summed(open_way, with_room)
        if not len(best) or above(known, *best.costs).all():
            return EMPTY
        return self._summed(open_way, open_way.spaces)

    def _may_improve(self, residents: Residents, known: tuple[Floats, Floats]) -> bool:
        """Whether weights that stay could pay if they cost the other members no room."""
        path, fronts = residents.path, list[tuple[Floats, Floats]]()
        for member in path.members:
            if member.name in residents.staying:
                floor = self.spaces.floor(member.resident)
                fronts.append((np.array(floor[:1]), np.array(floor[1:])))
            else:
                front = self.cache.front(member.streamed)
                if not len(front):
                    return False
                fronts.append((front.energy, front.latency))
        energies, latencies, _ = minkowski(fronts)
        return not above(known, energies + path.host[0], latencies + path.host[1]).all()

    def _summed(self, open_way: OpenWay, spaces: Iterable[tuple[str, LayerSpace]]) -> GroupHull:
        fronts: list[tuple[str, Front]] = []
        for name, space in spaces:
            fronts.append((name, self.cache.front(space)))
            if not len(fronts[-1][1]):
                return EMPTY
        return summed(open_way.group, fronts, open_way.host)

    def _resident_bytes(self, layer: TensorCoreLayer, region: Region) -> int:
        """Scratchpad bytes (profile dosa) of the weights that stay while a layer computes `region`."""
        d, groups, channels = layer.dims, max(extents(region.G)), max(extents(region.K))
        return self.rules.target.element_bytes * groups * channels * d.C * d.R * d.S

    def _buffered_bytes(self, run: FusionGroup, plan: dict[str, Member]) -> int:
        """Tile-buffer bytes of a group's own fused tensors."""
        return sum(
            box_bytes(self.graph, member, self.rules.target)
            for member in plan.values()
            if member.writes_inside and not member.in_place
        )

    def _floor(self, residents: Residents) -> tuple[float, float]:
        """Energy and latency that no way with these weights, or some of them, is below (inf: none fits)."""
        path, spaces = residents.path, residents.path.spaces(residents.staying)
        if not all(space.has_room_to_pool for space in spaces):
            return math.inf, math.inf
        costs = [path.host, *(self.spaces.floor(space) for space in spaces)]
        return sum(c[0] for c in costs), sum(c[1] for c in costs)


def _is_on_loops(way: Way) -> bool:
    """Whether loop units run all members on the array."""
    return all(mapping.issue in LOOPS for mapping in way.mappings().values())
