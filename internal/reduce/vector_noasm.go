//go:build !(amd64 || (arm64 && go1.27)) || purego || race

package reduce

import "github.com/gollective/gollective/dtype"

// Nothing is done by vectors; the Go routines do all.

func combineVectors(routine, []byte, []byte, []byte) int { return 0 }

func pairVectors(routine, []byte, []byte, []byte, []byte) int { return 0 }

func scaleVectors(dtype.Type, []byte, []byte, uint64) int { return 0 }

func widenVectors(dtype.Type, []float32, []byte) int { return 0 }

func narrowVectors(dtype.Type, []byte, []float32) int { return 0 }
