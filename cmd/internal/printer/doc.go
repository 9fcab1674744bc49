// Package printer prints what an agent says of its state, for people or as JSON and YAML. Nothing of it reaches a terminal
// unescaped.
package printer
