//go:build !linux

package main

import "time"

func kernel() string { return "" }

func ownTime() time.Duration { return 0 }

// hostTime is not known here.
func hostTime() time.Duration { return -1 }
