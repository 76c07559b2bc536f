//go:build !race

package tcp

const underRace = false
