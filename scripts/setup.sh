#!/bin/sh
# Prepare a checkout: .venv with everything in requirements.lock, the project itself in
# editable mode, and the system tools that the demo and the tests use.
#
# Safe to run again at any time: an unchanged checkout returns at once, an interrupted run
# is repaired. PYTHON=... chooses the interpreter of a new .venv.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/.setup-done

say() { printf 'setup: %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# --- system tools -------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }

# Spark runs on Java 17 or newer.
have_java() {
    for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
        major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
        [ "${major:-0}" -ge 17 ] && return
    done
    return 1
}

# The Debian packages whose commands are not here.
missing_packages() {
    have mosquitto || printf ' mosquitto'
    have mosquitto_pub || printf ' mosquitto-clients'
    have tshark || printf ' tshark'
    have_java || printf ' openjdk-17-jre-headless'
}

report_missing() {
    for package in $missing; do
        case $package in
            mosquitto) effect="'make demo' falls back to the embedded broker, the system tests of 'make test' cannot run" ;;
            mosquitto-clients) effect="the system tests that use mosquitto_pub and mosquitto_sub cannot run" ;;
            tshark) effect="the dissector test is skipped" ;;
            openjdk-*) effect="'threadline spark' and its tests cannot run" ;;
        esac
        say "$package is not installed and could not be fetched: $effect" >&2
    done
}

# Never fails: what cannot be installed is reported at the end.
install_missing() {
    command -v apt-get >/dev/null 2>&1 || return 0
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        as_root='sudo -n'
        $as_root true 2>/dev/null || return 0
    fi
    say "installing$missing"
    # policy-rc.d keeps the packages from starting services (Debian's own mosquitto) here.
    $as_root env DEBIAN_FRONTEND=noninteractive sh -c '
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            trap "rm -f $policy" EXIT
            trap "exit 1" HUP INT TERM
            printf "#!/bin/sh\nexit 101\n" >$policy
            chmod 755 $policy
        fi
        apt="apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=30"
        $apt update
        for package; do
            case $package in
                openjdk-*) candidates="$package openjdk-21-jre-headless openjdk-25-jre-headless" ;;
                *) candidates=$package ;;
            esac
            for candidate in $candidates; do
                $apt install -y --no-install-recommends "$candidate" && break
            done
        done
        if [ -d /run/systemd/system ]; then
            case " $* " in *" mosquitto "*) systemctl disable mosquitto ;; esac
        fi
    ' sh $missing >/dev/null 2>&1 </dev/null || true
}

# --- Python -------------------------------------------------------------------------------

find_python() {
    found=
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            "$python" -c 'import ensurepip, venv' 2>/dev/null ||
                die "threadline needs the venv module of Python $version; install the package python${version%.*}-venv"
            return
        fi
        found=${found:-"$python here is $version"}
    done
    die "threadline needs Python 3.11 or newer; ${found:-no ${PYTHON:-python3} here}"
}

# True if .venv was made here (it holds absolute paths), by a run that was not cut short, from
# the same lock, and its interpreter works.
venv_is_current() {
    [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$PWD" ] &&
        cmp -s requirements.lock .venv/requirements.lock && .venv/bin/python -c 'import pip' 2>/dev/null
}

# What the result depends on.
state() { printf '%s\n' "$PWD" "missing:$missing" && cat requirements.lock pyproject.toml scripts/setup.sh | cksum; }

# --- main ---------------------------------------------------------------------------------

missing=$(missing_packages)
if venv_is_current && [ "$(state)" = "$(cat "$stamp")" ]; then
    report_missing
    exit 0
fi

if venv_is_current; then
    rm -f "$stamp"
else
    find_python
    say "creating .venv with Python $version"
    rm -rf .venv
    "$python" -m venv .venv
    say "installing the Python packages of requirements.lock"
    .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
    cp requirements.lock .venv/requirements.lock
fi

say "installing threadline in editable mode"
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . || {
    printf '%s\n' "$PWD" failed >"$stamp" # .venv itself is sound: the next run need not build it again
    exit 1
}

[ -z "$missing" ] || install_missing
missing=$(missing_packages)
report_missing

state >"$stamp"
say "done"
