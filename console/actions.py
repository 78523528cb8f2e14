"""THE table of verbs: what an operator can ask for. It feeds the command line, the palette, the footer and the help."""

from __future__ import annotations

from console.telemetry.parse import AUTO, READERS
from console.verbs import analysis, demo, install, logs, playbooks, reports, runs, service, status
from console.verbs.verb import Argument, Verb

_HOST = Argument(
    "host", "demo, a name in hosts.toml, an SSH alias, user@host or user@host:port", option=False, required=True
)
_RUN = Argument("run", "a run's id", option=False, required=True)
_SET = Argument(
    "set", "a setting of engine.toml by its own name, e.g. page_size=64; may be repeated", kind="pair", repeat=True
)
_DRY_RUN = Argument("dry-run", "show the change, what fits and what restarts; touch nothing", kind="flag")
_YES = Argument("yes", "do not ask", kind="flag")
_SCOPE = Argument(
    "scope", "the service manager to use; without it, the one the host has", choices=("user", "system", "supervisor")
)

SESSION: tuple[Argument, ...] = (
    Argument("json", "one object, or one object a line where the verb streams", kind="flag"),
    Argument("read-only", "refuse everything that would change the box", kind="flag"),
    Argument("plain", "one plain line an event: no colour, no full screen", kind="flag"),
    Argument("accept-host-key", "pin the host's key if it has exactly this fingerprint", metavar="SHA256:…"),
    Argument("version", "print the version", kind="flag"),
    Argument("help", "print this", kind="flag"),
)
"""Options of the whole command, before or after the verb."""

_TABLE = (
    Verb(
        "demo",
        "A box without a box: see everything on this machine",
        "Start an SSH server on loopback with the bundled model behind it and open the console on it. While it runs, HOST "
        "`demo` works with every other verb. Everything it starts ends with it.",
        demo.demo,
        (
            Argument("headless", "no screen: serve until interrupted, or until --run is through", kind="flag"),
            Argument("run", "run this playbook; its verdict comes last", metavar="PLAYBOOK"),
            Argument("param", "a parameter of the playbook; may be repeated", kind="pair", repeat=True),
        ),
        streams=True,
    ),
    Verb(
        "doctor",
        "What would stop it from working, each with its mend",
        "Link, service manager, journal, python, torch, GPUs, model and drafter, ports, disk and clocks of the host, each "
        "pass, warn or fail. Touches nothing. Exit 3 when something fails.",
        install.doctor,
        (_HOST, _SCOPE),
        key="6",
    ),
    Verb(
        "install",
        "Put the engine on the host",
        "A release of the engine, its unit and first settings. Paths are paths on the host. Without --model, the bundled "
        "one is fetched there. A second time changes nothing; an interrupted install leaves the old release working.",
        install.install,
        (
            _HOST,
            Argument("model", "the model's folder on the host", metavar="DIR"),
            Argument("drafter", "the drafter's folder on the host", metavar="DIR"),
            Argument(
                "python", "the interpreter on the host whose torch is used; else one is looked for", metavar="PATH"
            ),
            _SET,
            _SCOPE,
        ),
        changes_box=True,
        streams=True,
    ),
    Verb(
        "uninstall",
        "Take the engine off the host",
        "Stop the engine and remove its unit, releases, settings, history and runs. Downloaded models stay.",
        install.uninstall,
        (_HOST, _SCOPE, _YES),
        changes_box=True,
        streams=True,
    ),
    Verb(
        "status",
        "How the host is: service, figures, alarms",
        "Link, service, engine, settings in force, the newest decode window, KV pool, GPUs and alarms of one host.",
        status.status,
        (_HOST, Argument("check", "exit 3 when an alarm sounds", kind="flag")),
        key="1",
    ),
    Verb(
        "start",
        "Start the engine",
        "Start the service and wait until it serves. With --set, the change goes through the settings transaction first.",
        service.start,
        (_HOST, _SET, _DRY_RUN, _YES),
        key="s",
        changes_box=True,
    ),
    Verb(
        "stop",
        "Stop the engine",
        "Stop the service. Requests in flight end.",
        service.stop,
        (_HOST, _SET, _DRY_RUN, _YES),
        key="x",
        changes_box=True,
    ),
    Verb(
        "restart",
        "Restart the engine, with other settings where asked",
        "Restart the service. With --set, new settings are staged, gated by a real completion and a soak, and rolled back "
        "when the gate fails. Exit 0 confirmed, 20 rolled back, 21 rollback failed, 22 base changed, 23 outcome unknown yet.",
        service.restart,
        (
            _HOST,
            _SET,
            _DRY_RUN,
            _YES,
            Argument(
                "confirm-within",
                "the change goes back by itself unless `ddtree confirm` follows within so many seconds",
                kind="count",
                metavar="S",
            ),
        ),
        key="r",
        changes_box=True,
    ),
    Verb(
        "confirm",
        "Keep the settings that wait for your word",
        "After restart --set --confirm-within: the change that waits on the host holds. Exit 20 when it was too late.",
        service.confirm_change,
        (_HOST,),
        key="c",
        changes_box=True,
    ),
    Verb(
        "revert",
        "Take back the settings that wait for your word",
        "After restart --set --confirm-within: the settings before come back at once, by the same gate.",
        service.revert_change,
        (_HOST,),
        key="v",
        changes_box=True,
    ),
    Verb(
        "rollback",
        "Go back to the settings before",
        "Put the previous settings generation in force, by the same transaction as restart --set.",
        service.rollback,
        (_HOST, _YES),
        key="b",
        changes_box=True,
    ),
    Verb(
        "history",
        "What was changed, when, by whom, how it ended",
        "Every settings generation on the host, newest first. With --diff, what is different between two of them, by their "
        "numbers.",
        service.history,
        (
            _HOST,
            Argument("diff", "the settings that generation B changes from A", kind="count", takes=2, metavar="A B"),
        ),
        key="2",
    ),
    Verb(
        "logs",
        "The engine's journal, or the figures in it",
        "Journal lines of the engine on the host, oldest first; with --samples the decode windows in them.",
        logs.logs,
        (
            _HOST,
            Argument("follow", "go on with what comes", kind="flag"),
            Argument("since", "where to begin: 10m, 2h, or a time such as 2026-05-04T10:00:00", metavar="T"),
            Argument("grep", "only lines in which this regular expression is found", metavar="RE"),
            Argument("samples", "the Samples in the lines, instead of the lines", kind="flag"),
        ),
        key="3",
        streams=True,
    ),
    Verb(
        "parse",
        "Figures from saved logs of any known engine",
        "Read saved logs (text, or `journalctl -o json` lines) and print one Sample a line, then what was skipped.",
        logs.parse_logs,
        (
            Argument("engine", "whose log it is", choices=(AUTO, *READERS), default=AUTO),
            Argument("file", "log files; - is standard input", kind="path", option=False, repeat=True),
        ),
        streams=True,
    ),
    Verb(
        "playbooks",
        "The experiments there are",
        "Every playbook that comes with the console or lies in the operator's own folder, with what it answers, how long it "
        "takes, whether it restarts the service, and what is wrong with it.",
        playbooks.playbooks,
        key="4",
    ),
    Verb(
        "check",
        "Whether script files are sound playbooks",
        "Header, syntax, imports, time-outs and undeclared effects of script files. Nothing is uploaded or executed.",
        playbooks.check,
        (Argument("file", "script files", kind="path", option=False, required=True, repeat=True),),
        streams=True,
    ),
    Verb(
        "run",
        "Run an experiment to its verdict",
        "Start a playbook detached on the host, follow its events, and give the verdict last. Leaving does not stop it. The "
        "exit status is the run's: 0 done, 3 the answer is no, 6 inconclusive, 7 void, 75 busy.",
        runs.run,
        (
            _HOST,
            Argument("playbook", "a playbook's id, or a script file", option=False, required=True),
            Argument("param", "a parameter of the playbook; may be repeated", kind="pair", repeat=True),
            Argument("detach", "start it and leave it to itself", kind="flag"),
        ),
        key="p",
        changes_box=True,
        streams=True,
    ),
    Verb(
        "attach",
        "Follow a run that goes on, or has ended",
        "Events of a run from its start, then live, and its verdict last.",
        runs.attach,
        (_HOST, _RUN),
        streams=True,
    ),
    Verb(
        "cancel",
        "Stop a run",
        "Ask a run to stop, make sure that it has, and that the engine runs nothing of it any more.",
        runs.cancel,
        (_HOST, _RUN),
        key="X",
        changes_box=True,
    ),
    Verb(
        "runs",
        "Every run this console knows",
        "Runs of every host, newest first, with their verdicts.",
        runs.runs,
        key="5",
    ),
    Verb(
        "show",
        "One run with its verdict",
        "Parameters, status, levels, verdict and warnings of a run.",
        runs.show,
        (Argument("run", "a run's id, the beginning of one, or last", option=False, required=True),),
    ),
    Verb(
        "compare",
        "What changed between two runs",
        "Rate, commit length and step time of run B over run A with intervals, and a verdict. Refused, with the keys that "
        "differ, where they did not measure the same: one setting may differ, the factor under test. The exit status is the "
        "verdict's.",
        reports.compare,
        (
            Argument("a", "the run before: its id, the beginning of one, or last", option=False, required=True),
            Argument("b", "the run after", option=False, required=True),
        ),
    ),
    Verb(
        "export",
        "A run as Markdown, CSV, JSON or one HTML page",
        "A run with its verdict, charts, figures, settings and provenance, on standard output or into a file.",
        reports.export,
        (
            Argument("run", "a run's id, the beginning of one, or last", option=False, required=True),
            Argument("format", "what to make", choices=("md", "csv", "json", "html"), default="md"),
            Argument("table", "what a CSV holds", choices=("samples", "levels", "points"), default="samples"),
            Argument("output", "a file here instead of standard output", kind="path", metavar="FILE"),
        ),
    ),
    Verb(
        "pin",
        "Make a run the one that others are measured by",
        "The golden run of its playbook under its conditions: diagnose holds the engine against it.",
        reports.pin,
        (
            Argument("run", "a run's id, the beginning of one, or last", option=False, required=True),
            Argument("remove", "take the pin off", kind="flag"),
        ),
    ),
    Verb(
        "explain",
        "Why one rate is not another: numbers from anywhere, decomposed",
        "Read observations (rates, steps, commit lengths, contexts), fit the step time, split the difference between two "
        "rows into acceptance, context, kernel and residual, and give the verdict.",
        analysis.explain,
        (
            Argument(
                "observations",
                "a JSON file; - is standard input",
                kind="path",
                option=False,
                required=True,
                metavar="OBSERVATIONS.json",
            ),
        ),
    ),
    Verb(
        "capacity",
        "What a model's tokens cost in the KV pool, and what fits",
        "KV bytes per token of a model folder (or its config.json), pages, and how many requests of full length fit.",
        analysis.capacity,
        (
            Argument("config_dir", "a model folder with config.json", option=False, required=True),
            Argument("context-length", "tokens of the longest request", kind="count", required=True),
            Argument("page-size", "tokens a page, 1 to 256", kind="count", default=16, metavar="P"),
            Argument("memory", "bytes for the pool on each device, e.g. 16GiB", kind="bytes", metavar="BYTES"),
            Argument("tensor-parallel", "devices the heads are split over", kind="count", default=1),
        ),
    ),
)

VERBS: dict[str, Verb] = {verb.name: verb for verb in _TABLE}
"""Every verb by name, in the order in which help and palette show them."""
