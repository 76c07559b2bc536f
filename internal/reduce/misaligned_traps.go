//go:build !(386 || amd64 || arm64 || ppc64 || ppc64le || s390x)

package reduce

// misalignedAccess is false where a misaligned access traps, is emulated at great
// cost, or depends on the chip.
const misalignedAccess = false
