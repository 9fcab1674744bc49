// Package assemblyscript has the SDK for plugins in AssemblyScript.
package assemblyscript

import _ "embed"

// SDK is the text of sluice.ts.
//
//go:embed sluice.ts
var SDK string
