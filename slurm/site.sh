# Reads the site's settings, $SITE_ENV or else slurm/site.env, as bash; sourced by common.sh and by `submit`.
# shellcheck shell=bash

refuse() {
    echo "error: $*" >&2
    exit 1
}

if [ -n "${SITE_ENV:-}" ] && [ ! -e "$SITE_ENV" ]; then
    refuse "SITE_ENV=$SITE_ENV does not exist: write the path of a file such as slurm/site.env."
elif [ -e "${SITE_ENV:=slurm/site.env}" ]; then
    if LC_ALL=C grep -q $'\r\|^\xef\xbb\xbf' "$SITE_ENV"; then
        refuse "$SITE_ENV has line ends or a byte order mark of Windows: sed -i 's/\r\$//; 1s/^\xef\xbb\xbf//' $SITE_ENV"
    fi
    site_said=$(bash -n "$SITE_ENV" 2>&1) || refuse "$SITE_ENV cannot be read: $site_said"
    # What it sources takes the launcher's arguments for its own, and may change them, or the folder.
    site_arguments=("$@") site_folder=$PWD
    set --
    trap 'refuse "$SITE_ENV ends the shell that reads it: leave out exit and set -e, or correct the command that fails."' EXIT
    # 127: no such command, as in NAME= VALUE and NAME=A B. What happens in files that it sources is their business.
    trap '[ $? -ne 127 ] || [ "${BASH_SOURCE[0]}" != "$SITE_ENV" ] || {
        trap - EXIT
        refuse "$SITE_ENV: $BASH_COMMAND: no such command: write quotation marks around a value with spaces, and" \
            "\`|| true\` after a command that only other machines have."
    }' ERR
    set -o allexport
    # shellcheck source=slurm/site.env.example
    source "$SITE_ENV"
    set +o allexport
    trap - EXIT ERR
    cd "$site_folder" || refuse "$site_folder is gone."
    set -- "${site_arguments[@]}"
fi
