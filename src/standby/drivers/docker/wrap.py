"""What runs in a container beside the order's own command: a few lines of shell that begin it once and note its end.

An order comes by standard input, as a function in shell: half of one is a syntax error and does nothing. The file
`begun` is the fence: who cannot make it is not the first. Each program that is run costs a millisecond or two: one is,
mkdir. An image needs /bin/sh, cat, mkdir and rm; for work by exec grep too.
"""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from standby.core.model import Spec

HOME: Final = "/run/standby"
"""A volume of the container's own: it can be written although the root cannot, and outlives a restart."""
RUNS: Final = f"{HOME}/runs"
"""A directory for each run, which notes how far it came."""
ONLY_RUN: Final = "run"
"""The directory of a run that has its container for itself."""
MARK: Final = "STANDBY_MARK"
NOT_BEGUN: Final = 125
RECORDED: Final = 125
"""From this exit code on it may be ours, or a signal's: what was noted in the run's directory decides."""

BEGUN: Final = "begun"
_BEGIN: Final = f"""trap _asked=1 TERM
d={RUNS}/$1
mkdir -p $d && set -C && {{ true >$d/{BEGUN}; }} 2>/dev/null || exit {NOT_BEGUN}
set +C
trap 'echo >$d/cut; exit {NOT_BEGUN}' EXIT
if [ -r /dev/stdin ]; then . /dev/stdin
else cat >$d/order && . $d/order; rm -f $d/order; fi
trap - EXIT
[ "$_whole" ] || {{ echo >$d/cut; exit {NOT_BEGUN}; }}
echo $$ >$d/pid
"""
ALONE: Final = f"{_BEGIN}_standby\n"
"""The first process of a container that is there for one run: its end is the end of everything in it."""
BY_EXEC: Final = f"""{_BEGIN}if ! {{ true >/proc/1/fd/1 2>/proc/1/fd/2; }} 2>/dev/null; then
echo "the output of the container cannot be written" >$d/error; exit {NOT_BEGUN}; fi
exec >/proc/1/fd/1 2>/proc/1/fd/2
_standby
"""
"""A run in a container that lives on. Its output joins the container's, between two marked lines."""

_FIND: Final = f'{MARK}= grep -ls "{MARK}=$1;" /proc/[0-9]*/environ'
"""Who carries the run's mark; without a subshell, which would carry it too."""
TOOL: Final = f"""d={RUNS}/$1
case $2 in
probe) read -r p <$d/pid && grep -qs "{MARK}=$1;" /proc/$p/environ ;;
ask) read -r p <$d/pid && grep -qs "{MARK}=$1;" /proc/$p/environ && kill -TERM $p ;;
kill) mkdir -p $d && set -C && {{ true >$d/{BEGUN}; }} 2>/dev/null
set +C
[ -e $d/cut ] || [ -e $d/pid ] || echo >$d/pid
while for p in $(grep -ls "{MARK}=$1;" /proc/[0-9]*/environ); do
p=${{p#/proc/}}; kill -9 ${{p%/environ}}; done; [ "$p" ]; do p=; done ;;
esac
"""
"""Asks or ends the processes of one run, from beside it: `sh -c TOOL standby RUN probe|ask|kill`. What is ended before
it began finds the fence taken, and begins no more."""

_RUN: Final = """_p=$(command -v "$1") || { echo "no such command: $1" >$d/error; exit 127; }
case $_p in /*) [ -x "$_p" ] || { echo "not executable: $1" >$d/error; exit 126; };; esac
trap '_asked=1; [ "$_c" ] && kill -TERM $_c' TERM
trap '_asked=1; echo >$d/taken; [ "$_c" ] && kill -TERM $_c' USR1
"$@" </dev/null &
_c=$!
[ "$_asked" ] && kill -TERM $_c
while wait $_c; _code=$?; kill -0 $_c; do :; done 2>/dev/null
"""
_OOMS: Final = """for _f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do [ -r $_f ] &&
while read -r _k _v; do [ "$_k" = oom_kill ] && _o=$_v; done <$_f; done
"""
"""How often a process of the container was killed for want of memory, by either version of control groups."""
_SWEEP: Final = f"""{_OOMS}[ "$_o" = "$_b" ] || echo >$d/oom
while {_FIND} >$d/left; _n=; while read -r _p; do _p=${{_p#/proc/}}; _p=${{_p%/environ}}
[ $_p = $$ ] || {{ kill -9 $_p 2>/dev/null; _n=1; }}; done <$d/left; [ "$_n" ]; do :; done
"""


def marked(word: str, run_id: str) -> str:
    """The line before (`begin`) or after (`end`) a run's output in the log of a container that it shares."""
    return f"\x1estandby {word} {run_id}"


def order_text(run_id: str, spec: Spec, env: Mapping[str, str], *, alone: bool) -> bytes:
    """The order as a function in shell, whole or not at all."""
    folder = ONLY_RUN if alone else run_id
    argv: Sequence[str] = spec.command
    lines = ["_standby() {", *(f"export {name}={shlex.quote(value)}" for name, value in env.items())]
    if spec.payload != "null":
        lines += [_file("payload", spec.payload), f"export STANDBY_PAYLOAD_FILE={RUNS}/{folder}/payload"]
    if spec.script is not None:
        lines.append(_file("script", spec.script))
        argv = (*_interpreter(spec.script), f"{RUNS}/{folder}/script")
    lines.append(f"set -- {' '.join(map(shlex.quote, argv))}")
    if alone:
        lines.append(_RUN)
    else:
        end = f"set -- {shlex.quote(run_id)}\n{_SWEEP}{_say('end', run_id)}"
        lines += [f"{_OOMS}_b=$_o", _say("begin", run_id) + _RUN, end]
    lines += [f"[ -e $d/taken ] && exit {NOT_BEGUN}", "echo $_code >$d/exit", "exit $_code", "}"]
    # a second copy may follow, from somebody who tried to start it too: it is not read
    lines += ["_whole=1", "return 0", ""]
    return "\n".join(lines).encode()


def _say(word: str, run_id: str) -> str:
    text = shlex.quote(marked(word, run_id).replace("\x1e", r"\036") + r"\n")
    return f"printf {text}; printf {text} >&2\n"


def _file(name: str, text: str) -> str:
    end = f"STANDBY_{secrets.token_hex(8)}"
    return f"cat >$d/{name} <<'{end}'\n{text}\n{end}"


def _interpreter(script: str) -> Sequence[str]:
    """What the kernel would run: a script's own `#!` line with at most one argument, or /bin/sh."""
    first = re.match(r"#![ \t]*(\S+)(?:[ \t]+(.*\S))?[ \t]*(?:\n|$)", script)
    return ("/bin/sh",) if first is None else tuple(part for part in first.groups() if part)
