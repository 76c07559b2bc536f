//go:build race

package collective_test

const underRace = true
