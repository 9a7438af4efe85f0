#!/usr/bin/env bash
# Build the libcurl of the wheel, with HTTP and HTTPS only. It is built from the distribution's newest sources, which
# include security updates.
#
#   build_curl.sh PREFIX [TOOLCHAIN]
#
# TOOLCHAIN is a CMake toolchain for another processor: 64-bit ARM (aarch64.cmake).
# The distribution's own library supports two dozen protocols, and so needs libraries for LDAP, RTMP, SSH, SASL and
# Kerberos. Users of a wheel get no updates of the libraries in it, so it should contain few libraries.
set -euo pipefail
prefix=$(mkdir -p "$1" && cd "$1" && pwd)
other_processor=()
if [ $# -gt 1 ]; then
  other_processor=("-DCMAKE_TOOLCHAIN_FILE=$(realpath "$2")")
  export DEB_HOST_ARCH=arm64 # for dpkg-buildflags
fi
sources=$prefix/sources
mkdir -p "$sources/lists/partial" "$sources/archives/partial" "$sources/parts"

# The machine's package sources also have source packages. The script uses separate lists, so that the machine's own
# lists do not change.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  if [ -f "$list" ]; then sed -n 's/^deb /deb-src /p' "$list" >>"$sources/parts/sources.list"; fi
done
for list in /etc/apt/sources.list.d/*.sources; do
  if [ -f "$list" ]; then sed 's/^Types:.*/Types: deb-src/' "$list" >"$sources/parts/$(basename "$list")"; fi
done
apt=(apt-get -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$sources/parts"
  -o "Dir::State::Lists=$sources/lists" -o "Dir::Cache=$sources" -o APT::Sandbox::User=root)
"${apt[@]}" update || echo "some package sources have no source packages; one of the others must have curl's" >&2
cd "$sources"
rm -rf curl-*/
"${apt[@]}" source curl # verifies signatures and applies the distribution's patches

cd curl-*/
version=$(dpkg-parsechangelog --show-field Version)
# The distribution's last patches change the library to GnuTLS and NSS. This build uses OpenSSL, so it reverts them.
for patch in debian/patches/99_nss.patch debian/patches/90_gnutls.patch; do
  if [ -f "$patch" ]; then patch --quiet --reverse --strip=1 <"$patch"; fi
done

flags() { DEB_BUILD_MAINT_OPTIONS=hardening=+all dpkg-buildflags --get "$1"; }
CFLAGS="$(flags CFLAGS) $(flags CPPFLAGS)" LDFLAGS=$(flags LDFLAGS) \
  cmake -G Ninja -S . -B build -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_TYPE=Release \
  "${other_processor[@]}" \
  -DBUILD_SHARED_LIBS=ON -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DENABLE_MANUAL=OFF \
  -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DENABLE_THREADED_RESOLVER=ON -DENABLE_IPV6=ON \
  -DCURL_DISABLE_{NTLM,COOKIES,ALTSVC,HSTS,NETRC}=ON -DENABLE_UNIX_SOCKETS=OFF -DCURL_DISABLE_CRYPTO_AUTH=OFF \
  -DCURL_USE_{LIBSSH2,LIBSSH,LIBPSL,GSSAPI}=OFF -DCURL_{BROTLI,ZSTD,ZLIB}=OFF -DUSE_{NGHTTP2,LIBIDN2}=OFF \
  >/dev/null
cmake --build build
cmake --install build --strip >/dev/null

"$prefix/bin/curl-config" --protocols --features
found=$("$prefix/bin/curl-config" --protocols | tr '\n' ' ')
test "$found" = "HTTP HTTPS " || { echo "libcurl must support HTTP and HTTPS only, but supports: $found" >&2; exit 1; }
# A bill of materials for the wheel, because no package of the distribution contains this build of the library.
distribution=$(. /etc/os-release && echo "$ID")
cat >"$prefix/libcurl.cdx.json" <<BILL
{
  "bomFormat": "CycloneDX",
  "specVersion": "1.4",
  "version": 1,
  "components": [
    {
      "type": "library",
      "name": "curl",
      "version": "$version",
      "purl": "pkg:deb/$distribution/curl@${version//+/%2B}?arch=source",
      "description": "libcurl for HTTP and HTTPS alone, built from the distribution's sources"
    }
  ]
}
BILL
