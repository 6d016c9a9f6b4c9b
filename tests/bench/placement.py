"""The ISPD 2020 wafer-scale placement contest: our scores against a shelf baseline.

The baseline (a shelf DP) has no adapter cost, so ``score_over_baseline`` compares time and wires
alone; our adapter counts and full totals are printed beside them. In A-J limits on the time are
tried from 2 % over the area bound on (``attempts``): a row shows the placement within 2 %, and a
second one, if that is not 5 % below the baseline, the fastest one that is, else the least score.
"""

import pathlib
import sys
import time

import harness

from wafer.placement.bounds import score_bound
from wafer.placement.contest import read_graph, write_placement
from wafer.placement.place import Effort, attempts, place

CASES = pathlib.Path(__file__).parent.parent / "golden" / "compiler"
LIKE = dict(zip("AEBFCGDHIOJPKQLRMSNT", [n for n in range(10) for _ in range(2)], strict=True))
BOUND = (33148, 62176, 60264, 32252, 46584, 45744, 251, 251, 2156288, 1019)
TIME = (34496, 63616, 62720, 33536, 48192, 47040, 252, 252, 2211840, 1036)
GOAL = 0.95  # of the baseline's score
WIRE = (1336, 3769, 9594, 5830, 3128, 7569, 1556, 11177, 3702, 1788)


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--cases", default="ABDEFGIKMNOPQS", help="letters of the cases")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the contest's own format")
    parser.add_argument("--longest", type=float, help="most time, as a multiple of the area bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--orders", type=int, default=Effort.orders, help="orders tried")
    parser.add_argument("--moves", type=int, default=Effort.moves, help="annealing moves per plan")
    options = parser.parse_args()
    if options.quick:
        options.cases, options.orders, options.moves = "AK", 40, 5000
    print(harness.environment())
    worst_score, worst_time, chosen = 0.0, 0.0, 0.0
    print("| case | time | over bound | wire | adapters | total | over baseline | bound | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in options.cases:
        graph, row = read_graph(CASES / f"{case}.kgraph"), LIKE[case]
        begin = time.perf_counter()
        say = lambda line, case=case: print(f"  {case} {line}", file=sys.stderr, flush=True)
        baseline = TIME[row] + graph.wlength * WIRE[row]
        effort = Effort(orders=options.orders, moves=options.moves)
        if options.longest or case > "J":
            placements = [place(graph, options.seed, options.longest, effort, say)]
        else:
            placements = attempts(graph, GOAL * baseline, options.seed, effort, say)
        seconds = time.perf_counter() - begin
        paid = lambda p, g=graph: g.wdeltat * p.score.time + g.wlength * p.score.wire
        best = min(placements, key=paid)
        quick = min(placements, key=lambda p: p.score.time)
        least = score_bound(graph, paid(best)) / baseline
        for kind, shown in [("least time", quick), ("chosen", best)]:
            if shown is best and kind == "least time":
                continue
            s, over = shown.score, shown.score.time / BOUND[row]
            print(
                f"| {case} {kind} | {s.time:.0f} | {over:.4f} | {s.wire:.0f} | {s.adapters} |"
                f" {s.total:.0f} | {paid(shown) / baseline:.4f} | {least:.4f} | {seconds:.0f} |",
                flush=True,
            )
        worst_score = max(worst_score, paid(best) / baseline)
        chosen = max(chosen, best.score.time / BOUND[row] if case <= "J" else 0.0)
        worst_time = max(worst_time, quick.score.time / BOUND[row] if case <= "J" else 0.0)
        if options.out:
            write_placement(options.out / f"{case}.out", graph, best.placed)
    rows = {"score_over_baseline": worst_score}
    if worst_time:
        rows |= {"time_over_bound": worst_time, "time_over_bound_of_chosen": chosen}
    harness.report(rows)


if __name__ == "__main__":
    main()
