#!/usr/bin/env bash
# Unpack the distribution's 64-bit ARM packages of the libraries that the engine links, and doctest for native tests.
#
#   aarch64_root.sh FOLDER
#
# The packages are only unpacked in FOLDER, where apt has its own lists. So the machine does not change, and needs no
# second architecture. The C and C++ libraries come with the compiler package. libraries.cdx.json lists the libraries
# that a wheel may bundle.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
rm -rf "$folder/usr" "$folder/archives"
mkdir -p "$folder/lists/partial" "$folder/archives/partial"
: >"$folder/status" # no package counts as installed, so apt lists all that are needed
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$folder/lists"
  -o "Dir::State::status=$folder/status" -o "Dir::Cache=$folder" -o APT::Sandbox::User=root)
"${apt[@]}" update || echo "some package sources have nothing for arm64; the distribution's own source must have it" >&2

wanted='^lib(ssl|nfs|uring)[0-9]'
read -ra libraries < <("${apt[@]}" install --simulate --no-install-recommends libssl-dev libnfs-dev liburing-dev |
  awk -v wanted="$wanted" '$1 == "Inst" && $2 ~ wanted { print $2 }' | xargs)
test "${#libraries[@]}" = 3 || { echo "expected three libraries, but apt lists: ${libraries[*]}" >&2; exit 1; }
cd "$folder/archives"
"${apt[@]}" download "${libraries[@]}" libssl-dev libnfs-dev liburing-dev doctest-dev # verifies signatures
for package in *.deb; do dpkg-deb --extract "$package" "$folder"; done

# No installed package contains these files, so auditwheel cannot write this bill of materials.
distribution=$(. /etc/os-release && echo "$ID")
components=()
for library in "${libraries[@]}"; do
  version=$(dpkg-deb --field "$library"_*.deb Version)
  components+=("{\"type\": \"library\", \"name\": \"$library\", \"version\": \"$version\",
    \"purl\": \"pkg:deb/$distribution/$library@${version//+/%2B}?arch=arm64\"}")
done
printf '{"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "components": [%s]}\n' \
  "$(IFS=, && echo "${components[*]}")" >"$folder/libraries.cdx.json"
