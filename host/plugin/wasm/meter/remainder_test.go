package meter_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// remainder returns a function whose first two parameters are the operands of a remainder. Its result is the remainder plus all
// other parameters, each plus the first one: these sums are made before the remainder and needed after it, but before its result.
func remainder(op string, others int) string {
	typ := op[:3]
	var sums strings.Builder
	rest, result := fmt.Sprintf("(%s.const 0)", typ), 2*others+2
	for i := range others {
		fmt.Fprintf(&sums, "(local.set %[2]d (%[1]s.add (local.get 0) (local.get %[3]d)))\n", typ, others+2+i, i+2)
		rest = fmt.Sprintf("(%s.add %s (local.get %d))", typ, rest, others+2+i)
	}
	return fmt.Sprintf(`(func (export "%[1]s %[2]d") (param %[3]s) (result %[4]s) (local %[3]s)
		%[7]s
		(local.set %[5]d (%[1]s (local.get 0) (local.get 1)))
		(%[4]s.add %[6]s (local.get %[5]d)))`, op, others, strings.Repeat(typ+" ", others+2), typ, result, rest, sums.String())
}

// remainderOf computes what op does, for b other than 0.
func remainderOf(op string, a, b uint64) uint64 {
	switch op {
	case "i32.rem_s":
		return uint64(uint32(int32(a) % int32(b)))
	case "i32.rem_u":
		return uint64(uint32(a) % uint32(b))
	case "i64.rem_s":
		return uint64(int64(a) % int64(b))
	}
	return a % b
}

// TestRemaindersAreThoseOfGo compares remainders with Go's, with as many other values as there are registers, and more: in wazero
// 1.12.0 on arm64, a remainder that has to give its register to others before it is complete is computed from an old value on the
// stack. The log says whether wazero itself computes them correctly, in which case they need not be replaced any more.
func TestRemaindersAreThoseOfGo(t *testing.T) {
	values := []uint64{0, 1, 2, 7, 1 << 20, math.MaxInt32 - 1, math.MaxInt32, 1 << 31, math.MaxUint32, math.MaxUint32 - 6,
		1 << 32, math.MaxInt64 - 1, math.MaxInt64, 1 << 63, math.MaxUint64, math.MaxUint64 - 6}
	var text strings.Builder
	ops, most := []string{"i32.rem_s", "i32.rem_u", "i64.rem_s", "i64.rem_u"}, 2*mostLocals
	for _, op := range ops {
		for others := range most {
			text.WriteString(remainder(op, others))
		}
	}
	module := wat(t, "(module "+text.String()+")")
	metered, _ := rewrite(t, module)
	ours, original := instantiate(t, metered, true), instantiate(t, module, false)
	calls, wrong := 0, 0
	for _, op := range ops {
		mask := uint64(math.MaxUint64)
		if strings.HasPrefix(op, "i32") {
			mask = math.MaxUint32
		}
		for others := range most {
			name := fmt.Sprint(op, " ", others)
			args := make([]uint64, others+2)
			sum := uint64(0)
			for i := range others {
				args[i+2] = uint64(1000 + i)
				sum += args[i+2]
			}
			for _, a := range values {
				for _, b := range values {
					args[0], args[1] = a&mask, b&mask
					want := "[] wasm error: integer divide by zero"
					if b&mask != 0 {
						want = fmt.Sprintf("[%d] ", (remainderOf(op, args[0], args[1])+sum+uint64(others)*a)&mask)
					}
					got, _, err := ours.call(1<<40, name, args...)
					if text := fmt.Sprint(got, " ", trapText(err)); text != want {
						t.Fatalf("%s(%#x, %#x): %s, want %s", name, args[0], args[1], text, want)
					}
					calls++
					if got, _, err := original.call(0, name, args...); fmt.Sprint(got, " ", trapText(err)) != want {
						wrong++
					}
				}
			}
		}
	}
	t.Logf("%d remainders; %d of them are wrong if wazero compiles the module as it is", calls, wrong)
}
