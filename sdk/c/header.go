// Package c has the header for plugins in C.
package c

import _ "embed"

// Header is the text of sluice.h.
//
//go:embed sluice.h
var Header string
