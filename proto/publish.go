package proto

import "sync/atomic"

// atomicWord is a word that others load with Go's atomics.
type atomicWord = *atomic.Uint64

// publishGo is the twin of publish, and a fence.
func publishGo(word atomicWord, value uint64) { word.Store(value) }
