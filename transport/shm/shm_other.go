//go:build !linux

package shm
