//go:build !purego && !race

package proto

import "unsafe"

// publish stores value after everything that this goroutine has stored before: a
// release. Go's own atomic store is a full fence as well, which waits until other
// processors have given the line up, for as long as they take to be asked for theirs:
// without it both happen at once.
//
//go:noescape
func publish(word *uint64, value uint64) // twin: publishGo

// publishWord is publish for a word that others load atomically. The word is as
// aligned as its type.
func publishWord(word atomicWord, value uint64) { publish((*uint64)(unsafe.Pointer(word)), value) }
