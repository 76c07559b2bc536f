//go:build !amd64 || purego || race

package proto

func publishWord(word atomicWord, value uint64) { publishGo(word, value) }
