//go:build 386 || amd64 || arm64 || ppc64 || ppc64le || s390x

package reduce

// misalignedAccess says that loads and stores of any size work at any address.
const misalignedAccess = true
