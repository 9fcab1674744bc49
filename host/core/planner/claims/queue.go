package claims

import (
	"iter"
	"slices"
)

// claimQueue lists the claims of a key by precedence, in short lists: while garbage is collected, moving thousands of pointers to
// insert one takes half a millisecond.
type claimQueue struct {
	lists [][]claim // none is empty
	n     int
}

// maxClaimList is the length at which a list is divided.
const maxClaimList = 64

// find returns the position of a claim, or where it would be inserted.
func (q *claimQueue) find(c claim, compare func(x, y claim) int) (list, at int, found bool) {
	list, _ = slices.BinarySearchFunc(q.lists, c, func(l []claim, c claim) int { return compare(l[len(l)-1], c) })
	if list == len(q.lists) {
		return list, 0, false
	}
	at, found = slices.BinarySearchFunc(q.lists[list], c, compare)
	return list, at, found
}

func (q *claimQueue) insert(c claim, compare func(x, y claim) int) {
	list, at, _ := q.find(c, compare)
	q.n++
	if list == len(q.lists) { // after all others
		if list == 0 {
			q.lists = [][]claim{{c}}
			return
		}
		list--
		at = len(q.lists[list])
	}
	l := slices.Insert(q.lists[list], at, c)
	q.lists[list] = l
	if len(l) == maxClaimList {
		q.lists = slices.Insert(q.lists, list+1, slices.Clone(l[maxClaimList/2:]))
		q.lists[list] = slices.Delete(l, maxClaimList/2, len(l))
	}
}

func (q *claimQueue) remove(c claim, compare func(x, y claim) int) {
	list, at, found := q.find(c, compare)
	if !found {
		return
	}
	q.n--
	if q.lists[list] = slices.Delete(q.lists[list], at, at+1); len(q.lists[list]) == 0 {
		q.lists = slices.Delete(q.lists, list, list+1)
	}
}

// all returns the claims by precedence.
func (q *claimQueue) all() iter.Seq[claim] {
	return func(yield func(claim) bool) {
		for _, l := range q.lists {
			for _, c := range l {
				if !yield(c) {
					return
				}
			}
		}
	}
}
