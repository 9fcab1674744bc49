package weights

import "testing"

func TestGCD(t *testing.T) {
	for a := range 40 {
		for b := range 40 {
			want := max(a, b)
			for want > 1 && (a%want != 0 || b%want != 0) {
				want--
			}
			if got := GCD(a, b); got != want {
				t.Errorf("gcd of %d and %d: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestFirstFieldOutsideItsRangeIsNamed(t *testing.T) {
	if err := CheckRanges(Range{"a", 1, 1, 3}, Range{"b", 3, 1, 3}); err != nil {
		t.Error(err)
	}
	for value, want := range map[int64]string{0: "b: 0 is not 1 to 3", 4: "b: 4 is not 1 to 3"} {
		if err := CheckRanges(Range{"a", 1, 1, 3}, Range{"b", value, 1, 3}, Range{"c", 9, 1, 3}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
