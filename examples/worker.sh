#!/bin/sh
# A worker in shell and curl: runs the given command for each order, with the assignment (JSON) on its standard input.
#
#     STANDBY_SLOT_TOKEN=... STANDBY_SOCKET=... sh worker.sh ./join-meeting
#
# STANDBY_URL instead of STANDBY_SOCKET where there is a network. See docs/workers.md for every call.
set -u
here=$(mktemp -d) && trap 'rm -rf "$here"' EXIT
nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') # one life, one nonce

ask() { # ask NAME METHOD ROUTE [BODY]: the answer goes to a file of that name, its status is printed
    curl -s --max-time 40 ${STANDBY_SOCKET:+--unix-socket "$STANDBY_SOCKET"} -X "$2" -o "$here/$1" -w '%{http_code}' \
        -H "@$here/token" -H 'Content-Type: application/json' ${4:+-d "$4"} \
        "${STANDBY_URL:-http://standby}/api/v1/worker/$3"
}

insist() { # the same until there is an answer; ends when the server wants nothing of this worker
    while true; do
        case $(ask "$@") in
        2*) return ;;
        4*) echo "leaving: $(said detail "$1")" >&2 && exit 0 ;;
        esac
        sleep 1
    done
}

said() { # said FIELD NAME: what an answer says
    sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$here/$2"
}

token() { # in a file, because command lines can be read by others
    (umask 077 && printf 'Authorization: Bearer %s\n' "$1" >"$here/token")
}

beat() { # beat RUN PID: says that it is at work, and obeys
    while true; do
        ask beat POST heartbeat "{\"run_id\":\"$1\"}" >/dev/null
        case $(said do beat) in
        stop) kill -TERM "-$2" ;;
        exit) kill -KILL "-$2" ;;
        esac
        sleep "$every"
    done
}

token "$STANDBY_SLOT_TOKEN"
unset STANDBY_SLOT_TOKEN # not for the orders
insist boot POST boot "{\"nonce\":\"$nonce\"}"
token "$(said boot_token boot)"
every=$(said heartbeat_s boot)

while true; do
    : >"$here/order"
    insist order GET "assignment?wait_s=20"
    test -s "$here/order" || continue # nothing yet
    run=$(said run_id order)
    STANDBY_RUN_ID=$run setsid "$@" <"$here/order" &
    child=$!
    beat "$run" "$child" &
    heart=$!
    wait "$child"
    code=$?
    kill -KILL "-$child" 2>/dev/null # what it left behind; a container's worker ends everything else in it
    kill "$heart" && wait "$heart" 2>/dev/null
    ask result POST result "{\"run_id\":\"$run\",\"exit_code\":$code}" >/dev/null
done
