// Package weights has what the bundled plugins share: integer weights from shares, and checks of settings.
package weights

// GCD returns the greatest common divisor of a and b; that of 0 and a number is the number.
func GCD[T ~int | ~uint64](a, b T) T {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
