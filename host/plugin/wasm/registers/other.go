//go:build !amd64 && !arm64

package registers

// Clear does nothing: plugins do not run on this processor.
func Clear() {}
