package meter_test

import (
	"fmt"
	"strings"
	"testing"
)

// used returns the fuel of a call of "f" with an argument.
func used(t *testing.T, text string, arg uint64) int64 {
	t.Helper()
	out, _ := rewrite(t, wat(t, text))
	_, n, err := instantiate(t, out, true).call(1<<40, "f", arg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestJoinsCostByTheLocalsAssignedBeforeThem(t *testing.T) {
	for _, c := range []struct {
		locals, assigned int
		kind             string
		slots            int64
	}{
		{200, 200, "i64", 200}, {200, 100, "i64", 100}, {200, 0, "i64", 0}, {200, 200, "v128", 400}, {200, 50, "v128", 100},
	} {
		var sets strings.Builder
		for i := range c.assigned {
			fmt.Fprintf(&sets, "(local.set %d (local.get %d))", 1+i, 1+(i+1)%c.locals)
		}
		module := func(block string) string {
			return fmt.Sprintf(`(module (func (export "f") (param i32) (local %s) %s))`, strings.Repeat(c.kind+" ", c.locals), block)
		}
		// All jump over the assignments.
		for name, block := range map[string]string{
			"block": "(block (br_if 0 (local.get 0)) " + sets.String() + ")",
			"if":    "(if (i32.eqz (local.get 0)) (then " + sets.String() + "))",
			"else":  "(if (local.get 0) (then) (else " + sets.String() + "))",
			"loop":  "(block $out (loop (br_if $out (local.get 0)) " + sets.String() + "))",
		} {
			without := used(t, module(strings.Replace(block, sets.String(), "", 1)), 1)
			got := used(t, module(block), 1) - without
			want := c.slots / 4
			if name == "loop" { // its header and the block around it
				want *= 2
			}
			if got != want {
				t.Errorf("%s, %d of %d locals of type %s assigned: the join costs %d, want %d", name, c.assigned, c.locals, c.kind, got, want)
			}
		}
	}
}

func TestLoadsCostByTheSizeThatTheMemoryMayHave(t *testing.T) {
	for limits, want := range map[string]int64{"1 1": 1, "1 16": 1, "1 17": 8, "1": 8} {
		module := fmt.Sprintf(`(module (memory %s) (func (export "f") (param i32) %%s))`, limits)
		one := used(t, fmt.Sprintf(module, "(drop (i32.load (local.get 0)))"), 8) - used(t, fmt.Sprintf(module, "(drop (local.get 0))"), 8)
		if one != want {
			t.Errorf("memory %s: a load costs %d, want %d", limits, one, want)
		}
	}
}

// Each path from a check to the next is short, in whatever way code is arranged: fuel
// shows what is executed until the first check.
func TestCodeIsCheckedOften(t *testing.T) {
	work := "local.get 1 " + strings.Repeat("f64.sqrt ", 500) + "local.set 1 " // 4002 units
	for name, text := range map[string]string{
		"straight":                   strings.Repeat(work, 10),
		"branches around checks":     strings.Repeat("(block (br_if 0 (i32.const 1)) "+work+work+work+")"+work, 4),
		"branches out of two blocks": strings.Repeat("(block (block (br_if 1 (i32.const 1)) "+work+work+work+"))"+work, 4),
		"one arm":                    strings.Repeat("(if (local.get 0) (then "+work+") (else "+work+work+work+"))", 5),
		"leaf calls":                 strings.Repeat("(call $leaf)", 5000),
	} {
		out, _ := rewrite(t, wat(t, `(module (func $leaf (drop (i32.add (i32.const 1) (i32.const 2))))
			(func (export "f") (param i32) (local f64) `+text+`))`))
		r := instantiate(t, out, true)
		_, all, err := r.call(1<<40, "f", 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The fuel that is missing to go on at the first check after half of the work is what it is overdrawn by.
		_, n, err := r.call(all/2, "f", 1)
		if over := n - all/2; err == nil || over > 8192+4096 {
			t.Errorf("%s: %d units after the fuel was used up, of %d: %v", name, over, all, err)
		}
	}
}

// A recursion that returns does not enter functions or loops.
func TestReturnsAreChecked(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module (func $leaf (drop (i32.add (i32.const 1) (i32.const 2))))
		(func $f (export "f") (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1)))))
		`+strings.Repeat("(call $leaf)", 50)+`))`))
	r := instantiate(t, out, true)
	_, all, err := r.call(1<<40, "f", 2000)
	if err != nil {
		t.Fatal(err)
	}
	if _, n, err := r.call(all/2, "f", 2000); err == nil || n-all/2 > 8192 {
		t.Errorf("%d units after the fuel was used up, of %d: %v", n-all/2, all, err)
	}
}
