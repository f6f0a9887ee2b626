"""A parity check of small parts in this process: no workers, one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from metalmark.model.parity import Compared
from metalmark.model.plan import Budget, Device, DeviceKind, Dtype, Mode, Plan, Scalar, Settings
from metalmark.model.workload import Workload
from metalmark.parity.base import ParityBackend
from metalmark.parity.candidate import CandidateExaminer
from metalmark.parity.job import Case, Options
from metalmark.parity.judge import judge
from metalmark.parity.lines import LineWriter, read_lines
from metalmark.parity.reference import ReferenceExaminer
from metalmark.workloads.catalog import load

BRIEF = Options(repeats=0, seeds=0)


class Check:
    """The plans of a check of the GPU against the CPU; each side can be examined by itself, again and again."""

    def __init__(
        self,
        side: ParityBackend,
        folder: Path,
        workload: str,
        params: dict[str, Scalar],
        *,
        dtype: Dtype = Dtype.FLOAT32,
        options: Options = BRIEF,
        seed: int = 0,
    ) -> None:
        self._side, self._folder, self._dtype = side, folder, dtype
        self._workload: Workload = load(workload)
        plan = Plan(
            workload=workload,
            params={param.name: param.default for param in self._workload.params} | params,
            mode=Mode.TRAINING,
            framework=side.name,
            device=Device(kind=DeviceKind.GPU),
            settings=Settings(dtype=dtype),
            budget=Budget(),
            seed=seed,
        )
        reference = msgspec.structs.replace(plan, device=Device(kind=DeviceKind.CPU), settings=Settings())
        self._case = Case(plan=plan, reference=reference, folder=str(folder), options=options)

    def examine_reference(self) -> None:
        self._examine(is_reference=True)

    def examine_candidate(self) -> None:
        self._examine(is_reference=False)

    def compare(self) -> Sequence[Compared]:
        self.examine_candidate()
        reference, candidate = (read_lines(self._folder, reference=which) for which in (True, False))
        return judge(reference, candidate, self._dtype)

    def _examine(self, *, is_reference: bool) -> None:
        write = LineWriter(self._folder, reference=is_reference)
        examiner = ReferenceExaminer if is_reference else CandidateExaminer
        try:
            examiner(self._side, self._case, self._workload, write=write, tell=lambda *_: None).examine()
        finally:
            write.close()
