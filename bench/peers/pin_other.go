//go:build !linux

package main

// pin does nothing: threads can't be tied to processors here.
func pin([]int) error { return nil }

// cpuSeconds is 0: it is not measured here.
func cpuSeconds() float64 { return 0 }
