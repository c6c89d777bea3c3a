# Copyright 2026 The jax_flux Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks of preset mode: results, pushed bytes, flags and control words, late and absent peers."""

import os
import signal
import sys
import time
import traceback

import torch
from preset_rank import EPOCH, POISON, SITE, Library, Rank

SLACK = 1.1  # error against float64, as a multiple of the unfused 16-bit result's


def relative_error(value, exact):
    return ((value.double() - exact).norm() / exact.norm()).item()


def first_bad(value, exact, tolerance=0.05):
    bad = ((value.double() - exact).abs() > tolerance * (1 + exact.abs())) | value.isnan()
    where = bad.nonzero()
    lines = [f"{len(where)} of {bad.numel()} bad, shape {tuple(value.shape)}"]
    for index in where[:4].tolist() + where[-2:].tolist():
        at = tuple(index)
        lines.append(f"  {at}: got {value[at].item():.4f} want {exact[at].item():.4f}")
    return "\n".join(lines)


def expect_close(what, value, exact, reference):
    ours, theirs = relative_error(value, exact), relative_error(reference, exact)
    if not ours <= SLACK * theirs:
        raise AssertionError(f"{what}: error {ours:.3e}, unfused {theirs:.3e}\n"
                             + first_bad(value, exact))  # fmt: skip
    return ours / theirs


def expect_equal(what, value, exact):
    if not torch.equal(value, exact):
        where = (value != exact).nonzero()
        at = tuple(where[0].tolist())
        raise AssertionError(f"{what}: {len(where)} of {value.numel()} differ, first {at}: got "
                             f"{value[at].item()} want {exact[at].item()}")  # fmt: skip


def check_results(state, parity):
    world, rank, _, _, columns, depth = state.shape
    w64 = state.wt.double()
    if state.op != "rs":
        exact = state.finish(torch.stack([x.double() @ w64 for x in state.shards], 1))
        # In f32 before the one rounding: the bar of a kernel that rounds once.
        unfused = torch.stack([x.float() @ state.wt.float() for x in state.shards], 1)
        unfused = state.finish(unfused).to(state.dtype)
        ratio = expect_close("y", state.y, exact, unfused)
        if state.op == "ag":
            for peer in range(world):
                if peer != rank:
                    slot = state.slots(state.spaces[peer], parity, depth)[rank]
                    expect_equal(f"pushed shard at {peer}", slot.view(torch.int16),
                                 state.x.view(torch.int16))  # fmt: skip
        return ratio
    others = [r for r in range(world) if r != rank]
    exact = state.finish(
        state.x[:, rank].double() @ w64 + sum(state.partials[r].double() for r in others)
    )
    unfused = state.x[:, rank].float() @ state.wt.float()
    unfused = state.finish(unfused + sum(state.partials[r].float() for r in others)).to(state.dtype)
    ratio = expect_close("y", state.y, exact, unfused)
    for peer in others:
        slot = state.slots(state.spaces[peer], parity, columns)[rank]
        ratio = max(ratio, expect_close(f"partial at {peer}", slot, state.x[:, peer].double() @ w64,
                                        state.x[:, peer] @ state.wt))  # fmt: skip
    return ratio


def check_overflow(library, name):
    """f16: past the largest number results and partials are inf, elsewhere as near as ever."""
    state = Rank(library, name, 1 if name.endswith("plain") else 2, 0, 1, 256, 384, 512)
    state.w *= 4e4
    state.launch()
    torch.cuda.synchronize()
    w64 = state.wt.double()
    if state.op == "rs":
        own = state.x[:, 0].double() @ w64 + state.partials[1].double()
        sent = state.slots(state.spaces[1], EPOCH & 1, state.shape[4])[0]
        pairs = [(state.y, own), (sent, state.x[:, 1].double() @ w64)]
    else:
        pairs = [(state.y, torch.stack([x.double() @ w64 for x in state.shards], 1))]
    for value, exact in pairs:
        # To nearest: 65520 lies between the largest number, 65504, and the next that is not one.
        over, near = exact.abs() > 65520, ((exact.abs() - 65520).abs() < 1)
        if not over.any():
            raise AssertionError("nothing overflows")
        expect_equal("inf", value.isinf() & ~near, over & ~near)
        expect_equal("sign", value.signbit() & over, (exact < 0) & over)
        error = relative_error(value.double()[~over & ~near], exact[~over & ~near])
        if not error < 2.0**-11:
            raise AssertionError(f"error {error:.3e} where nothing overflows")


def check_protocol(state, epoch):
    world, rank = state.shape[:2]
    at = state.layout
    control = state.words(state.spaces[rank], 0, 16 * 9).cpu()[::16].tolist()
    kind = state.kind
    copied = epoch if kind == "copy" else 0  # the source word of the flag copies
    if control != [epoch, 0, 0, 0, 0, 0, 0, 0, copied]:
        raise AssertionError(f"control words {control}, expected epoch {epoch} and zeros")
    for peer in range(world):
        if peer == rank:
            continue
        space = state.spaces[peer]
        row = at[f"{kind}_flags"] + rank * at[f"{kind}_row"]
        flags = state.words(space, row, at[f"{kind}_count"])
        expect_equal(f"flags at {peer}", flags, torch.full_like(flags, epoch))
        entry = state.words(space, at["entries"] + (2 * rank + (epoch & 1)) * 128, 2).tolist()
        if entry != [epoch, SITE]:
            raise AssertionError(f"entry at {peer}: {entry}")


def check_case(library, name, case):
    late = case.pop("late", False)
    state = Rank(library, name, **case)
    ratio = 0.0
    first = None
    for call in range(2 if state.op != "plain" else 1):
        state.y.fill_(POISON)
        if late and call == 0:
            state.withhold()
            torch.cuda.synchronize()
        state.launch()
        if late and call == 0:
            state.deliver(pause_s=0.002)
        torch.cuda.synchronize()
        ratio = max(ratio, check_results(state, (EPOCH + call) & 1))
        if state.op != "plain":
            check_protocol(state, EPOCH + call)
        if first is not None:
            expect_equal("second call", state.y.view(torch.int16), first.view(torch.int16))
        first = state.y.clone()
    return ratio


def in_child(seconds, body):
    """Runs body in a forked process (CUDA starts there) and ends it after `seconds`."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
            code = 0
        except BaseException:  # the child reports and ends, whatever happened
            print(traceback.format_exc()[-1500:])
            code = 1
        sys.stdout.flush()
        os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(f"  HUNG: killed after {seconds} s")
    return -9


def check(path, wanted, seconds, cases, paced=False):
    names = [n for n in Library(path).instances(paced) if not wanted or any(w in n for w in wanted)]
    failed = []

    def body(name):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = False
        # Else cuBLAS may add f16 in f16, and the bar would be a low one.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        library = Library(path)
        done, worst = 0, 0.0
        for case in cases(name):
            try:
                worst = max(worst, check_case(library, name, dict(case)))
                done += 1
            except AssertionError as error:
                print(f"  FAIL {name} {case}\n    {error}")
            except Exception:
                print(f"  DIED {name} {case} after {done} good")
                raise
        if "_f16_" in name:
            check_overflow(library, name)
        print(f"{name}: {done} cases good, worst error ratio {worst:.3f}")
        if done != len(list(cases(name))):
            raise SystemExit(1)

    for name in names:
        if in_child(seconds, lambda name=name: body(name)) != 0:
            failed.append(name)
    print(f"check: {len(names) - len(failed)} of {len(names)} instances good; failed: {failed}")
    return failed


def check_deadline(path):
    """A peer that never comes ends the kernel with a record that names it."""

    def body(name):
        state = Rank(Library(path), name, 3, 1, 1, 256, 512, 512)
        state.withhold()
        state.call.fail_ns = 200_000_000
        torch.cuda.synchronize()
        state.launch()
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            kind, wait, _, rank, peer, index = state.failure()
            good = (kind, rank) == (2, 1) and wait in (1, 2) and peer in (0, 2) and index >= 0
            said = str(error).splitlines()[0]
            print(f"deadline {name}: {'good' if good else 'WRONG'}, {state.failure()}, {said}")
            sys.stdout.flush()
            os._exit(0 if good else 1)  # the context is dead: tensors cannot be freed
        raise AssertionError("the kernel ended without its peers")

    failed = []
    for op in ("ag", "rs"):
        name = next(n for n in Library(path).instances() if n.endswith(op))
        if in_child(15, lambda name=name: body(name)) != 0:
            failed.append(f"deadline {op}")
    return failed
