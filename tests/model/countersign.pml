/*
 * The commit protocol of Countersign, small enough to be tried in every order.
 *
 * One effect; two processes of its agent with a journal each, each talking to a replica of its own; two people, the
 * agent's owner who must not count, a policy that changes, time, an operator who freezes and revokes, crashes of either
 * side at every step, answers that are lost, and a database that is restored from a backup. What happens in one unit of
 * work is atomic; what is read before it may be old by then.
 *
 * -DFAULT_n takes one rule away; each is found by the assertion that names the invariant it breaks. -DOLD_BACKUP shows
 * a limit of the design. Which fault is which stands in README.md, and in test_promela.py that runs them all.
 */

#ifndef REVISIONS
#define REVISIONS 2    /* lists of calls submitted under one run key */
#endif
#ifndef CHANGES
#define CHANGES 1      /* of the policy */
#endif
#ifndef CRASHES
#define CRASHES 1      /* of each process of the agent */
#endif
#define BUDGET 1       /* what the meter allows, in effects */

mtype = { none, review, released, denied, expired, withdrawn, revoked, redeemed, fired, unknown, unused };

/* the database */
mtype st = none;
byte rev = 0;          /* the list in force: its number is its bytes */
byte dec = 0;          /* the decision that stands */
byte need = 1;         /* people, the most ever asked on this revision */
byte vote[3] = 0;      /* the revision each has approved; the third is the owner */
byte by = 0;           /* whose attempt redeemed it, 1 or 2; 3: a restore forgot */
byte epoch = 1;
byte reserved = 0, consumed = 0;
bool over = false;     /* answer_by or valid_until has passed */
bool window = false;   /* fire_by has passed */
bool grace = false;    /* and the manifest's timeout */
bool frozen = false;
bool task = false;

/* the policy in git and as each replica has it: 0 asks one, 1 asks two, 2 forbids */
byte head = 0;
byte policy[2] = 0;

/* the agent's journals: 0 staged, 1 attempt named, 2 receipt, 3 FIRING (and 4: the tool was called), 5 fired, 6 told */
byte j[2] = 0;
byte jrev[2] = 0;      /* the bytes it will hand to the tool */

/* what really happened, known to nobody */
byte redemptions = 0, fires = 0, redeemer = 0, redeemed_rev = 0;
byte saw[2] = 0;       /* the revision each person has read and approved */
bool acked[2] = false; /* the service said yes */

/* the backup */
bool backed_up = false, restored = false;
mtype b_st; byte b_rev, b_dec, b_need, b_by, b_reserved, b_consumed; byte b_vote[3]; bool b_over;

#define OPEN(s)    ((s) == review || (s) == released)
#define UNSPENT(s) ((s) == denied || (s) == expired || (s) == withdrawn || (s) == revoked)
#define ABSORBS(s) (UNSPENT(s) || (s) == fired || (s) == unused)
#define ASKS(b)    ((b) == 0 -> 1 : 2)
#define ONE(v)     ((v) == rev -> 1 : 0)
#ifdef FAULT_11
#define COUNT (ONE(vote[0]) + ONE(vote[1]) + ONE(vote[2]))
#else
#define COUNT (ONE(vote[0]) + ONE(vote[1]))
#endif
#define AGREED (ONE(saw[0]) + ONE(saw[1]))   /* people who have read exactly this */

#define I_1 (redeemer == i + 1)                          /* no fire without a redemption */
#define I_2 (jrev[i] == redeemed_rev)                    /* fired bytes are those the votes saw */
#define I_3 (redemptions <= 1 && fires <= 1)             /* once */
#define I_4 (!over && !frozen && policy[i] != 2 && tepoch == epoch)
#define I_5 (AGREED >= need)                             /* gates met by people who may, on this revision */
#define I_6 (!ABSORBS(st))                               /* terminal states absorb */
#define I_7 (!acked[i] || by == i + 1 || restored)       /* what was acknowledged is there */
#define I_10 (reserved + consumed <= BUDGET)

inline move(to) { assert(I_6); st = to }

inline give_back() { reserved = reserved - 1; assert(I_10) }

inline end_unfired(to) { move(to); give_back(); over = false }

/* the active policy of replica r is asked about the open effect, and people's votes are counted anew */
inline ask(r)
{
  if
  :: policy[r] == 2 -> end_unfired(denied)
  :: else ->
     if :: need < ASKS(policy[r]) -> need = ASKS(policy[r]) :: else fi;
     if
     :: st == review && COUNT >= need -> assert(I_5); move(released); dec++
     :: st == released && COUNT < need -> move(review); dec++
     :: else
     fi
  fi
}

inline new_revision(r)
{
  rev++; dec++; over = false; need = 1;
  vote[0] = 0; vote[1] = 0; vote[2] = 0; saw[0] = 0; saw[1] = 0;
  if
  :: policy[r] == 2 || reserved + consumed >= BUDGET -> st = denied
  :: else -> reserved++; assert(I_10); st = review; need = ASKS(policy[r])
  fi
}

inline no_release() { tdec = 0; trev = 0; tepoch = 0 }

inline receipt() { no_release(); acked[i] = true; j[i] = 2 }

/* -- the agent ---------------------------------------------------------------------------------------------- */

proctype Agent(byte i)
{
  byte tdec = 0, trev = 0, tepoch = 0;     /* the release it holds; gone in a crash */
  byte crashes = 0;
  bool renewed = false, ok = false;

end:
  do
  /* stage: a first list, the same again when it has ended, or another one that supersedes what is open */
  :: atomic { j[i] == 0 && tdec == 0 && st == none -> new_revision(i) }
  :: atomic { j[i] == 0 && tdec == 0 && UNSPENT(st) && rev < REVISIONS -> new_revision(i) }
  :: atomic { j[i] == 0 && i == 1 && OPEN(st) && rev < REVISIONS -> end_unfired(withdrawn); new_revision(i) }
  :: atomic { j[i] == 0 && i == 1 && OPEN(st) -> end_unfired(withdrawn) }

  /* a release, minted when asked for */
  :: atomic { j[i] == 0 && tdec == 0 && st == released && !over && !frozen ->
       tdec = dec; trev = rev; tepoch = epoch }

  /* the attempt is journaled before it is used */
  :: atomic { j[i] == 0 && tdec != 0 -> j[i] = 1; jrev[i] = trev }

  /* redeem: a known attempt answers at once; the answer of either may be lost */
  :: atomic { j[i] == 1 && by == i + 1 -> receipt() }
  :: atomic { j[i] == 1 && tdec == 0 && by != i + 1 -> j[i] = 0 }
  :: j[i] == 1 && tdec != 0 && by != i + 1 ->
#ifdef FAULT_1
     /* the condition of the UPDATE is gone: what was read before counts */
     atomic { ok = (st == released && !over && !frozen && tepoch == epoch && tdec == dec) };
     atomic { if :: ok -> skip :: else -> goto refused fi;
#else
     atomic {
#endif
       if
#ifndef FAULT_1
       :: st != released -> goto refused
#endif
#ifndef FAULT_5
       :: tdec != dec -> goto refused
#endif
       :: tepoch != epoch -> goto refused
#ifndef FAULT_14
       :: frozen -> goto refused
#endif
#ifndef FAULT_4
       :: over -> goto refused
#endif
       :: else -> skip
       fi;
#ifndef FAULT_3
       if :: st == released -> ask(i) :: else fi;
       if :: st != released && !ok -> goto refused :: else fi;
#endif
#ifdef FAULT_8
       /* told before the commit, which may then never be */
       acked[i] = true; j[i] = 2;
       if :: skip :: no_release(); goto answered fi;
#endif
       redemptions++; redeemer = i + 1; redeemed_rev = rev;
       assert(I_3);
       assert(I_5);
#ifndef FAULT_1                              /* it breaks these too; the search goes on to what it is about */
       assert(I_4);
       assert(I_6);
#endif
       st = redeemed; by = i + 1; reserved = reserved - 1; consumed++; window = false; grace = false;
#ifndef FAULT_1
       assert(I_10);
#endif
       if
       :: receipt()                          /* the answer arrives */
       :: skip                               /* it is lost: the same attempt is sent again */
       fi;
       goto answered;
refused:
       no_release(); j[i] = 0
#ifdef FAULT_6
       ; j[i] = 2                            /* no answer is taken for a yes */
#endif
     };
answered:
     ok = false

  /* fire: FIRING is journaled, then the tool is called, then that is journaled */
  :: atomic { j[i] == 2 && !window ->
       assert(I_7);
       assert(I_1);
       j[i] = 3 }
  :: atomic { j[i] == 3 ->
       j[i] = 4; fires++;
       assert(I_1);
       assert(I_2);
       assert(I_3) }
  :: atomic { j[i] == 4 -> j[i] = 5 }

  /* fire_by has passed: more time, or it stays unused */
  :: atomic { j[i] == 2 && window && !renewed && st == redeemed && by == i + 1 && !over && !frozen &&
              policy[i] != 2 && COUNT >= need && COUNT >= ASKS(policy[i]) -> renewed = true; window = false; grace = false }
  :: atomic { j[i] == 2 && window ->
       assert(I_7); j[i] = 6;
       if
       :: (st == redeemed || st == unknown) && (by == i + 1 || by == 3) -> move(unused); by = i + 1; task = false
       :: else
       fi }

  /* report, at least once; a receipt from before a restore settles what the restore made unknown */
  :: atomic { j[i] == 5 ->
       j[i] = 6;
       if
       :: (st == redeemed || st == unknown) && (by == i + 1 || by == 3) -> move(fired); by = i + 1; task = false
       :: else
       fi }

  /* a crash: the journal stays, everything else is gone */
  :: atomic { crashes < CRASHES && j[i] != 6 ->
       crashes++; no_release();
       if
#ifdef FAULT_7
       :: j[i] == 4 -> j[i] = 3              /* FIRING was the last word: fire, then */
#else
       :: j[i] == 3 || j[i] == 4 ->          /* it may have fired or not: never again, a person settles it */
          j[i] = 6;
          if :: st == redeemed && by == i + 1 -> move(unknown); task = true :: else fi
#endif
       :: else
       fi }
  /* or it never comes back */
  :: crashes < CRASHES && j[i] != 6 -> break
  od
}

/* -- people ------------------------------------------------------------------------------------------------- */

proctype Person(byte v)
{
  byte read;
end:
  do
  :: atomic { OPEN(st) && read != rev -> read = rev }     /* the page as it is now */
  :: atomic { read != 0 && vote[v] != read && st != none ->
#ifdef FAULT_2
       saw[v] = read; vote[v] = rev;                      /* whatever was read, it counts for what stands */
#else
       if
       :: read == rev -> saw[v] = read; vote[v] = read
       :: else -> goto stale
       fi;
#endif
       if
#ifdef FAULT_10
       :: st == expired && COUNT >= need -> move(released)
#endif
       :: st == review && over -> end_unfired(expired)
       :: st == review && !over && COUNT >= need -> ask(v)
       :: else
       fi;
stale: read = 0 }
  :: atomic { read == rev && st == review -> end_unfired(denied) }
  od
}

proctype Owner()
{
end:
  do
  :: atomic { st == review && vote[2] != rev ->
       vote[2] = rev;
       if :: COUNT >= need && !over -> ask(0) :: else fi }
  od
}

/* -- time, the policy, the operator ------------------------------------------------------------------------- */

proctype Clock()
{
end:
  do
  :: atomic { OPEN(st) && !over -> over = true }
  :: atomic { st == redeemed && !window -> window = true }
  :: atomic { st == redeemed && window && !grace -> grace = true }
  od
}

#ifdef TICKING
/* Time goes on when nothing else does: otherwise a run that hangs would only be a run that ends. */
proctype Tick() { do :: true -> skip od }
#endif

proctype Sweeper(byte r)
{
end:
  do
#ifdef FAULT_12
  :: OPEN(st) && over -> atomic { if :: OPEN(st) -> move(expired) :: else fi; give_back() }
#else
  :: atomic { OPEN(st) && over -> end_unfired(expired) }
#endif
#ifndef FAULT_13
  :: atomic { st == redeemed && grace -> move(unknown); task = true }
#endif
  /* the replica follows the policy and asks about what is open */
  :: atomic { policy[r] != head -> policy[r] = head; if :: OPEN(st) -> ask(r) :: else fi }
  od
}

proctype Author()
{
  byte changes = 0;
end:
  do
  :: atomic { changes < CHANGES && !ABSORBS(st) -> changes++; if :: head != 1 -> head = 1 :: head != 2 -> head = 2 :: head != 0 -> head = 0 fi }
  od
}

proctype Operator()
{
  bool stopped = false, ended = false;
end:
  do
  :: atomic { !stopped && OPEN(st) -> frozen = true; stopped = true }
  :: atomic { frozen -> frozen = false }
  :: atomic { !ended && OPEN(st) -> end_unfired(revoked); ended = true }
  od
}

/* A backup is a moment of the past. Bringing it back begins a new epoch, and what was open then is doubted. */
proctype Backup()
{
end:
  do
#ifdef OLD_BACKUP
  :: atomic { !backed_up && st != none ->
#else
  :: atomic { !backed_up && st != none && !UNSPENT(st) ->
#endif
       backed_up = true;
       b_st = st; b_rev = rev; b_dec = dec; b_need = need; b_by = by; b_over = over;
       b_reserved = reserved; b_consumed = consumed;
       b_vote[0] = vote[0]; b_vote[1] = vote[1]; b_vote[2] = vote[2] }
  :: atomic { backed_up && !restored ->
       restored = true;
       st = b_st; rev = b_rev; dec = b_dec; need = b_need; by = b_by; over = b_over;
       reserved = b_reserved; consumed = b_consumed;
       vote[0] = b_vote[0]; vote[1] = b_vote[1]; vote[2] = b_vote[2];
#ifndef FAULT_9
       epoch++;
       if :: OPEN(st) -> st = unknown; by = 3; task = true; reserved = reserved - 1; consumed++ :: else fi;
#endif
       assert(I_10) }
  od
}

init
{
  atomic {
    run Agent(0); run Agent(1); run Person(0); run Person(1); run Owner();
    run Clock(); run Sweeper(0); run Sweeper(1); run Author(); run Operator();
#ifdef TICKING
    run Tick();
#endif
#ifndef NO_RESTORE
    run Backup()
#endif
  }
}

/* I-14: what can be finished is finished, and what only a person can settle is a task. */
#define AT_REST (st != review && st != released && st != redeemed && (st != unknown || task))
ltl i_14 { <> [] AT_REST }
