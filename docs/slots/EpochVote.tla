----------------------------- MODULE EpochVote -----------------------------
\* How one slot gets a primary for each epoch, and keeps what was committed.
\*
\* The actions are those of crates/core/src/slots: Stand and Promise are SlotReplica::grant and Candidacy, Win is
\* Candidacy::is_won with Reign::new and Reign::spread, Write is Reign::begin_write, Store is
\* SlotReplica::accept and store with Reign::handle_stored. A question and its answer are one step here; in
\* crates/core/tests/slot_model.rs they are two. An action that never happens is a message that was lost.
\*
\* The sounding, with which a replica finds out whether it would be granted an epoch before it asks for one, is left
\* out: it promises nothing, so it decides only when Stand happens, and Stand may happen at any time.
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS Replicas, Epochs, Writes,
          Recovers,  \* a winner adopts the newest head of its granters before it serves
          Renews     \* and has it stored again, as accepted in its own epoch

VARIABLES promised,   \* per replica: the epoch below which it refuses everything; durable
          head,       \* per replica: the newest thing it stores; durable
          candidacy,  \* per replica: the epoch it asks for, who granted it, the newest head among them
          reign,      \* per replica: the epoch it serves, or 0; whether all it wrote is on a majority
          stores,     \* orders to store a head, each with those who followed it
          committed,  \* every head that was acknowledged or shown
          claims,     \* who ever served which epoch
          written     \* how many writes there were
vars == <<promised, head, candidacy, reign, stores, committed, claims, written>>

\* A head is a tag, epoch and sequence; the epoch whose primary had it stored last; and the list of the writes that led
\* to it.
Nothing == [accepted |-> 0, epoch |-> 0, sequence |-> 0, value |-> <<>>]
Older(a, b) == \/ a.accepted < b.accepted
               \/ a.accepted = b.accepted /\ a.epoch < b.epoch
               \/ a.accepted = b.accepted /\ a.epoch = b.epoch /\ a.sequence < b.sequence
Newest(a, b) == IF Older(a, b) THEN b ELSE a
IsMajority(some) == 2 * Cardinality(some) > Cardinality(Replicas)
NoCandidacy == [epoch |-> 0, granters |-> {}, newest |-> Nothing]
NoReign == [epoch |-> 0, sequence |-> 0, settled |-> TRUE]

Init ==
  /\ promised = [r \in Replicas |-> 0]
  /\ head = [r \in Replicas |-> Nothing]
  /\ candidacy = [r \in Replicas |-> NoCandidacy]
  /\ reign = [r \in Replicas |-> NoReign]
  /\ stores = {} /\ committed = {} /\ claims = {} /\ written = 0

\* A replica that misses the primary promises the next epoch to itself.
Stand(r) ==
  /\ promised[r] < Epochs
  /\ LET epoch == promised[r] + 1 IN
     /\ promised' = [promised EXCEPT ![r] = epoch]
     /\ candidacy' = [candidacy EXCEPT ![r] = [epoch |-> epoch, granters |-> {r}, newest |-> head[r]]]
  /\ reign' = [reign EXCEPT ![r] = NoReign]
  /\ UNCHANGED <<head, stores, committed, claims, written>>

\* Another one promises it too: from now on it refuses whatever is of an earlier epoch.
Promise(r, c) ==
  /\ r # c /\ candidacy[c].epoch > promised[r]
  /\ promised' = [promised EXCEPT ![r] = candidacy[c].epoch]
  /\ candidacy' = [candidacy EXCEPT ![r] = NoCandidacy,
                                    ![c] = [epoch |-> @.epoch, granters |-> @.granters \cup {r},
                                            newest |-> Newest(@.newest, head[r])]]
  /\ reign' = [reign EXCEPT ![r] = NoReign]
  /\ UNCHANGED <<head, stores, committed, claims, written>>

\* With a majority of promises it is the primary. What it inherits it has to get to a majority before it goes on.
Win(c) ==
  /\ candidacy[c].epoch > 0 /\ candidacy[c].epoch = promised[c] /\ IsMajority(candidacy[c].granters)
  /\ LET epoch == candidacy[c].epoch
         found == IF Recovers THEN Newest(head[c], candidacy[c].newest) ELSE head[c]
         kept == IF Renews /\ found # Nothing THEN [found EXCEPT !.accepted = epoch] ELSE found
     IN
     /\ claims' = claims \cup {<<epoch, c>>}
     /\ head' = [head EXCEPT ![c] = kept]
     /\ reign' = [reign EXCEPT ![c] = [epoch |-> epoch, sequence |-> 0, settled |-> kept = Nothing]]
     /\ stores' = (IF kept = Nothing THEN stores ELSE stores \cup {[by |-> c, epoch |-> epoch, head |-> kept, at |-> {c}]})
  /\ candidacy' = [candidacy EXCEPT ![c] = NoCandidacy]
  /\ UNCHANGED <<promised, committed, written>>

\* A primary writes on the condition that what it has is there: the new value is made from the old one.
Write(p) ==
  /\ reign[p].epoch > 0 /\ reign[p].settled /\ written < Writes
  /\ written' = written + 1
  /\ LET new == [accepted |-> reign[p].epoch, epoch |-> reign[p].epoch, sequence |-> reign[p].sequence + 1,
                 value |-> Append(head[p].value, written + 1)] IN
     /\ head' = [head EXCEPT ![p] = new]
     /\ reign' = [reign EXCEPT ![p] = [epoch |-> @.epoch, sequence |-> new.sequence, settled |-> FALSE]]
     /\ stores' = stores \cup {[by |-> p, epoch |-> new.epoch, head |-> new, at |-> {p}]}
  /\ UNCHANGED <<promised, candidacy, committed, claims>>

\* A replica follows the order of a primary, unless it has promised a later epoch.
Store(s, r) ==
  /\ r \notin s.at /\ s.epoch >= promised[r]
  /\ promised' = [promised EXCEPT ![r] = s.epoch]
  /\ head' = [head EXCEPT ![r] = Newest(@, s.head)]
  /\ candidacy' = (IF s.epoch > promised[r] THEN [candidacy EXCEPT ![r] = NoCandidacy] ELSE candidacy)
  /\ LET at == s.at \cup {r}
         counts == IsMajority(at) /\ reign[s.by].epoch = s.epoch
         after == (IF s.epoch > promised[r] THEN [reign EXCEPT ![r] = NoReign] ELSE reign)
     IN
     /\ stores' = (stores \ {s}) \cup {[s EXCEPT !.at = at]}
     /\ committed' = (IF counts THEN committed \cup {s.head} ELSE committed)
     /\ reign' = (IF counts /\ head[s.by] = s.head THEN [after EXCEPT ![s.by].settled = TRUE] ELSE after)
  /\ UNCHANGED <<claims, written>>

\* A crash ends what was not written down. Promises and heads were.
Crash(r) ==
  /\ candidacy' = [candidacy EXCEPT ![r] = NoCandidacy]
  /\ reign' = [reign EXCEPT ![r] = NoReign]
  /\ UNCHANGED <<promised, head, stores, committed, claims, written>>

Next ==
  \/ \E r \in Replicas : Stand(r) \/ Win(r) \/ Write(r) \/ Crash(r)
  \/ \E r, c \in Replicas : Promise(r, c)
  \/ \E s \in stores, r \in Replicas : Store(s, r)
Spec == Init /\ [][Next]_vars

\* An epoch has at most one primary.
OnePrimary == \A a, b \in claims : a[1] = b[1] => a[2] = b[2]
\* A primary has all that was committed before it.
NoLostWrite == \A r \in Replicas : reign[r].epoch > 0 =>
                 \A c \in committed : c.accepted < reign[r].epoch => ~Older(head[r], c)
\* Of any two values that were ever shown, one was made from the other.
IsPrefix(a, b) == Len(a) <= Len(b) /\ a = SubSeq(b, 1, Len(a))
OneLine == \A a, b \in committed : IsPrefix(a.value, b.value) \/ IsPrefix(b.value, a.value)
\* What is promised never falls.
NeverFalls == [][\A r \in Replicas : promised'[r] >= promised[r]]_vars
=============================================================================
