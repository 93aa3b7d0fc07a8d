package rules

import (
	"fmt"
	"slices"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// CheckBatch refuses what no lane in its right mind sends, before any SQL.
func CheckBatch(b *store.Batch) error {
	l := 0
	for i, lease := range b.Leases {
		if lease.Build != b.Build || i > 0 && lease.Partition <= b.Leases[i-1].Partition {
			return fmt.Errorf("apply %s: leases are not of build %d, each partition once, in order", b.Consumer, b.Build)
		}
	}
	for i, c := range b.Checkpoints {
		if c.To <= c.From {
			return fmt.Errorf("apply %s: checkpoint of %s, partition %d goes from %d to %d", b.Consumer, c.Topic, c.Partition, c.From, c.To)
		}
		if i > 0 {
			p := b.Checkpoints[i-1]
			if c.Topic < p.Topic || c.Topic == p.Topic && c.Partition <= p.Partition {
				return fmt.Errorf("apply %s: checkpoints are not in order of topic and partition", b.Consumer)
			}
			if c.Topic != p.Topic {
				l = 0
			}
		}
		for l < len(b.Leases) && b.Leases[l].Partition < c.Partition {
			l++
		}
		if l == len(b.Leases) || b.Leases[l].Partition != c.Partition {
			return fmt.Errorf("apply %s: no lease covers the checkpoint of %s, partition %d", b.Consumer, c.Topic, c.Partition)
		}
	}
	for i := range b.Tables {
		w := &b.Tables[i]
		if len(w.DeleteChildrenOf) > 0 && w.Table.Table.Parent == nil {
			return fmt.Errorf("apply %s: table %s is no child table and has no children to delete", b.Consumer, w.Table.Physical)
		}
		if r := &w.Table; r.Build != b.Build || r.Epoch != b.Epoch {
			return fmt.Errorf("apply %s: table %s is of build %d, epoch %d, the batch of %d, %d", b.Consumer, r.Physical, r.Build, r.Epoch, b.Build, b.Epoch)
		}
	}
	return checkUndelivered(b)
}

// CheckDeclaration refuses a declaration that no database could keep.
func CheckDeclaration(d *store.Declaration) error {
	for what, name := range map[string]string{"type": d.ID.Type, "name": d.ID.Name} {
		if err := readmodel.CheckKey(name); err != nil {
			return &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("%s of the consumer: %v", what, err)}
		}
	}
	if len(d.Topics) == 0 {
		return &store.InvalidError{Code: "bad_request", Index: -1, Reason: "a consumer needs an input topic"}
	}
	for i, topic := range d.Topics {
		if slices.Contains(d.Topics[:i], topic) {
			return &store.InvalidError{Code: "bad_request", Index: -1, Reason: fmt.Sprintf("topic %q is given twice", topic)}
		}
	}
	return nil
}

// ChangedHashes names what a declaration changed besides its logic.
func ChangedHashes(stored, declared store.Fingerprint) (changed []string) {
	differ := stored.Version != declared.Version // hashes of two versions do not compare
	for _, h := range []struct{ name, a, b string }{
		{"inputs", stored.Inputs, declared.Inputs},
		{"keys", stored.Keys, declared.Keys},
		{"tables", stored.Tables, declared.Tables},
	} {
		if differ || h.a != h.b {
			changed = append(changed, h.name)
		}
	}
	return changed
}
