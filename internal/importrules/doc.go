// Package importrules has no code. Its test reads the source of the whole module
// and holds it to the rules of docs/architecture.md: who may import whom, who may
// use unsafe, who may wait.
package importrules
