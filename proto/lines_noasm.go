//go:build !amd64 || purego || race

package proto

// The race detector sees no access of assembly: under it the twins run, whose
// atomics it can check the protocols by.

func packLL(lines, src []byte, flag uint64) { packLLGo(lines, src, flag) }

func unpackLL(dst, lines []byte, flag uint64) int { return unpackLLGo(dst, lines, flag) }

func packLL128(lines, src []byte, flag uint64) { packLL128Go(lines, src, flag) }

func unpackLL128(dst, lines []byte, flag uint64) int { return unpackLL128Go(dst, lines, flag) }
