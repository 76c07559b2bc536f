//go:build !amd64 || purego || race

package reduce

import "github.com/gollective/gollective/dtype"

// Nothing is done by vectors; the Go routines do all.

func combineVectors(routine, []byte, []byte, []byte) int { return 0 }

func pairVectors(routine, []byte, []byte, []byte, []byte) int { return 0 }

func scaleVectors(dtype.Type, []byte, []byte, uint64) int { return 0 }

func widenVectors(dtype.Type, []float32, []byte) int { return 0 }

func narrowVectors(dtype.Type, []byte, []float32) int { return 0 }

func canStream() bool { return false }

// Nothing can be streamed, so that these are not called.

func combineStream(routine, []byte, []byte, []byte) {}

func pairStream(routine, []byte, []byte, []byte, []byte) {}

func copyStream([]byte, []byte) {}

func streamFence() {}
