//go:build !amd64 || purego || race

package reduce

func canStream() bool { return false }

// Nothing can be streamed, so that these are not called.

func combineStream(routine, []byte, []byte, []byte) {}

func pairStream(routine, []byte, []byte, []byte, []byte) {}

func copyStream([]byte, []byte) {}

func streamFence() {}
