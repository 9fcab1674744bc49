// Package weights has what the bundled plugins share: integer weights from shares, hashes, and checks of settings.
package weights

import "github.com/sluice-proxy/sluice/sdk"

// GCD returns the greatest common divisor of a and b; that of 0 and a number is the number.
func GCD[T ~int | ~uint64](a, b T) T {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Unchosen reports whether an endpoint is ready but not chosen by the default rules, because of hints to other zones. A plugin that
// weighs zones itself gives it weight. A chosen endpoint without weight was excluded by a previous plugin and stays excluded.
func Unchosen(c sdk.Conditions) bool {
	return c&(sdk.Ready|sdk.Terminating|sdk.Chosen) == sdk.Ready
}
