//go:build !linux

package collective_test

// playRole is for tests with processes, which need Linux.
func playRole() bool { return false }
