"""The codebooks ("grids") of the iq1, iq2 and iq3 types.

A grid lists the vectors of 8 (iq3: 4) levels that a code may stand for. They are constants of the
file format, given by the tables iq2xxs_grid ... iq1s_grid of ggml-common.h. Every vector is a
number with 2 bits (iq3: 3) a level, first element in the lowest bits; the numbers of a grid rise,
so that it is kept here as differences (u16; iq3: u8), deflated and in base 85.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache

import numpy as np

from weft.errors import GraphError
from weft.quants._blocks import F32, U8
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """A codebook, packed."""

    length: int
    """Number of elements of a vector."""
    levels: tuple[int, ...]
    """The value of each level."""
    packed: str
    """Rising codes as differences, deflated, in base 85."""


@cache
def grid(name: str) -> F32:
    """The codebook of type `name` as float32 `[n_vectors, length]`; iq1_m shares the codebook of
    iq1_s.

    Raises GraphError for a type without a codebook."""
    table = GRIDS.get("iq1_s" if name == "iq1_m" else name)
    if table is None:
        raise GraphError(f"{name} has no codebook; types that have one: {', '.join(GRIDS)}")
    bits = 2 if table.length == 8 else 3
    raw = zlib.decompress(base64.b85decode(table.packed))
    codes = np.cumsum(np.frombuffer(raw, "<u2" if bits == 2 else "u1"), dtype=np.uint32)
    fields = (codes[:, None] >> (bits * np.arange(table.length, dtype=np.uint32))) & (2**bits - 1)
    vectors: F32 = np.array(table.levels, np.float32)[fields]
    vectors.setflags(write=False)
    return vectors


def _parity_signs() -> F32:
    """Signs `[128, 8]` of a 7-bit index: bit i set is minus; the eighth makes minuses even."""
    bits: U8 = np.unpackbits(np.arange(128, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bits[:, 7] = bits[:, :7].sum(axis=1) & 1
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)


PARITY_SIGNS: F32 = _parity_signs()
"""The eight signs of each 7-bit sign index of iq2_xxs, iq2_xs and iq3_xxs."""


GRIDS: dict[str, Grid] = {
    "iq2_xxs": Grid(
        8,
        (8, 25, 43),
        "c-l>o%_~G<6vlt=9q$<5%`|34k?SKV7I(u;lA4l4*+^L^!%A!<ikg~|KVnKTNhv9mg%S%=w)R%GQp&<c@!UIC>2}"
        "Y#=bYy}=Q-zsLqv~5t!$%wRBt-?j!`Gyt~f@9#UN)HV4Nf?%DNON89y5jaZ%yA0$h@XFz%yAd~vol!Belxg0Uf{E"
        "u1+_kx}kR@NTPoox=47^VWjt9`#~67W<9yW2<VGGE*Fo;w@0&k*B1}K9`(ZU-bwbVsbc<y_Ww8aVbuP?P1Vtn+%&"
        "=nA_I>8^>tYyy_<FQj%A{mBtowsw5}}8Vb_Cqv!?WRCz5o%!{Lo2c}uKK3`0G7i5c!vCO+PIJ(6bvz(c@^3&>n;@"
        "kTD{n}_wy^~aQqXr>2xO48({w`Um*wxMYdFI3X{R@{06U?xsy33JqOq2Pv{%zY?Qg)R`U96jKnv54Y<TX0O5PO=R"
        "adI_R`~ssbK5z",
    ),
    "iq2_xs": Grid(
        8,
        (8, 25, 43),
        "c-noE!An$O6vcnv8=k#nm>L<!j4_`kgAv8U!9{H(6H+7>fsG^TI4-n^Bnq5}S>(QT5JHG8T86tI2v@CI)SuwmUCV"
        "Ic`M!BmGsBDw@6EmU-Fxo2=U(tg=;v|4y%YMcM+V#ci+XZRwy!UhwwyXjb5@eTAtiay5*=}GpPTejHRpHolrz#5B"
        "h4_o&dPFC->0dWW;V7<E@m=LD6FFMBJL?tRU}|r(TaaQi==V}y0VDKDEcgB8wqvav}akxGQ!-AD~{w%^3_<+<F>p"
        "B-YBcW2}>0H)+ri&LZ`a50*2UQlr_y&awvmhc%-?~Jm87EcPyJg2wC+hNSz<be9aX$=ux!V-+khC?K;owi$R$>{{"
        "h?EwBE;mZJs;JPQT2i6uK+#&@@mkk>aCR7u*bcocf(ED2kP{SL5-W86g!-;|4-?3&keTgaIF<z#Yma!!4oDsWPvc"
        "`=;hM7^N8Fx^7|2<e6pLWclm3lv(wj@{MB_EUW%b7Z3@{;uZhxJFT9d)qh?7HQA+js|j%pxuH9o(cWJ1i1)_sZPL"
        "}}wY!{IQ+|p*N-?*rZlR{VPV+~KRE^J+Q{gvTs`<iYZ;?;@WS)KL)Z_Ns%MORic_@8tY?R0D1{e8d3cS>GHfohw;"
        "jQcgJzLWC49CYy3j",
    ),
    "iq2_s": Grid(
        8,
        (8, 25, 43),
        "c-oy+&ubGw6#k}V8Z!(H9=dj8Nc>SnDurM{s)z><Lhx3Qv{G30AQf%NMGB>t2>u7sTh9e=dh;OUPxH&nY%;UEv&O"
        "Q_%+A|4-@Ny|9}6sDna>g$W?trMC23*bbo(3LUPJO3R%mt#ryA6=nA+?$$3cLkh&<PQXpj|Fk%@Xcik5eR8=Kxez"
        "NU<L*a>WUSFk9T-!}6|lzo(*7e1;)3yEP$&*Z%Tv4s(?^L-U7)VPlU4rP_+?Gm$oyi~2%@yPmqA8|<Ijdr$A*R80"
        "}|HouZ!*N<-xsOc@MHtgw>Eu}jR*ENhZx9mvkg-_Vc(iDZ;^W6iyL)tCpTfF{P@B6Qu3hYlV#Y1zSwf7l^D)Jx@O"
        "gfUTh5Yi_`(}sV1t+^YaxqyY}+-ppi3FijMPhA?DDMDCLaRk#Z~ick*rWIMxzQw`?!Y#VRJQhej|D|!6)}Nk#!YS"
        "Unf_~>6BiL#iFOHtRK%ZXd=qr75hh?Srgv&8F#TSZGQ;6(!Y61$&=;l6??IaSkfnQmz8>q?>G`u$!l!mkdk$gAzP"
        "ax+s@J{bwcfRo@z$69Ct%gyN#LTXNk$)!aORR%px)gDsUGW*JsSJKX}Zu4_J|z^zGBpXwOj;F5OKZ@J7_<;U2$ac"
        "u5{FL>}Fb^mah`b1{<nAMu*2iCw;()4mI?wkPeG*><EU;s7^U^(l75Z_&jme&G?mQX}D5!CTzHUl`O*2m",
    ),
    "iq3_xxs": Grid(
        4,
        (4, 12, 20, 28, 36, 44, 52, 62),
        "c-kF}K~ID*6ol>Y=mSb06<WIncY$3=(2yAM>`lE9|Np<Sc$j2nGWq5X$UzERK7x{E%D|>BQq5pcrG>PDxph7_HAr"
        "{vBYHv*cdV0O)CtUZJ2GE2q_ob^ZK1ZScNzajl$8UJ(A<+MzzJ!U^-L>Ga`ILG4HKV^$6)gVVbCMD!8Pq?(`jAzL"
        "mQUhji9F8H_GYz%P^Zs!k$647z^#<AY<`zPTxiRU1f8S^LUw`_0KfFFR}rub!+w7=MPrG<OZ}~fB7vBnE",
    ),
    "iq3_s": Grid(
        4,
        (1, 3, 5, 7, 9, 11, 13, 15),
        "c-keA+fKtk3`E)SE%DwGn$m`XR8*u2-Vy)*XL!rgt}T1!*nUchkWvDWSOpXxff0=yCnjRBRTfQ*L=h6}D5^9m6AY"
        "w`3Z~5QRnqP#h<ZksOlWI2JTjHHhvu*f2Q<*EDI8gh)X)@8gF?y42SVs2mQ`~gRalT5AC>*iRB;)gg;$;aB{8Hzd"
        "Av2IA}9_1=r|KO#Ng~P5Ai%&wPl^jh<7rXYsz(k_#1Crk>%Bfpp9)1TqnQ+VsVZjCftoB+-9)0Nri1yt`>dn^>DZ"
        "bZob7N;cvFMM7K(W8${TplNK2ae8Y22dx3xK>voo$b=Q!Lz7p36=J~3#i`J8*UZuoxikHuF!0#39cWm~!EcX8LtX"
        "Xs_(tlcSv~S1D7k-%LC@8vE?syxQvvogHdx=w@znAOj{s-R}55W",
    ),
    "iq1_s": Grid(
        8,
        (-1, 0, 1),
        "c-oCujc(&M3>IZ6c4}XLuysxoU(*5|+U*W|o!*)NJz$6K)~(nx?9InN(UP6)h9ZqEQ55-+{Kz=xU4?(%)h@UezZd"
        "w~xQ^G(@JUu$+k0}LyA?jQZg3HwmiURNgVw!!Z|8Tj^Q61Mx9ECZp_>E#m$%<RP7Wy5q0|Z9@{ynSd?VnVNc6ZH@"
        "eJsC#X7{B-kqaP@hk2AiP8`F-KkWAt7QAY)<(Sfkgf3`3Oha1qK*M20B@6(2gRm4>U)E-8?$uWeTk6itoUw0mb5>"
        "pbYL8O=B;2qC>DUL361Es?vyoE?#&{)&@=RYf}gELYY%i|tB5vueuMV`$8^L|&JG;!VCdIs=dYFt^O(q5o7o7NWY"
        "6~i%jQu9MyJZ+pDc=Qot>%GR<gXZ^8>EZ`x#1qg~*we@Qc}9-ZJ3=GsUYH0dv`#*P}g=v2FOB_DIub_YTqa?s^iP"
        "lw%RKy~I2x1eY=^rn@QAI<_QgtP*Nllw5Fx_k82DiX-n0v%MXhX_jt_sCr(J8_A+C_)OOIMJ|f$t;OGK<x`AWe(S"
        "V;TaLztGwsB^9IP-xJbC_uem`@}$lF`Jx3d_D$E0~TIW>BGpkgnjmha3{vH2JFG%~Nr4dP|WuuAi#&f?!%K1&6OH"
        "Q;`;N*d6oirFi=8{ECX+WH>RI-h83HG{k&T${GWeR43XrO3QFzNai7vz}J24&<!Z{K#C}W>FI!PJ9SjIfBs@$_fL"
        "EU(e9-N{hKzD>}=fcD&|d;5=Dqeu&JPt*;A)@|saYhI`WZhOzM$c|!67;TUrsisnNs{G~J3`ki=wUoe$eK|V;VOH"
        "`AMzBoaMh|WA7k6M*t%k?B?WYdk-Gof+fJ_DEziCZZ6Q5YtVEEK5qcp}e7i96YmBMV1aw)Af9?ey+mV>I0v^X*aB"
        "{Dgg{x>v@~Q1mKabdW2}16d1PpJ`<WBl3jp5-UBgC-F$^kQ_}ce5jr}&bx0%eZ^JNWOsDPPyzWqaxVa735lghEUm"
        "7WW<S~aC63J7S@tFVT)9i?!x<BGj7g<^EU4YIw#K^~n-jkB|9j2^>5z^4QRkPx02Eunt<R>uX_wuqoHr~IPwcZUT"
        "VX9uIjG7q;=RT{*eoFkJaKPm`7Y3^&7<cTPr|_~e|n8+!0&*bNYpMgk`41tjeU2gNF)~OHD`Us3R15tzNOU~42+z"
        "2KdHv3Yy;f;Px;=?JzY*aO>6z4J31eF%du!&=b4MWMzlRTE8c7Wo9liBnKIvTZAffB&~$@nEcI0Kf7$~^uFGeXQ="
        "W}STV=ut%8!Bj>Jl;8&-!<7b1!v<{s0cC^W<}vw>rG#NFJM&N&e@#&e(CpfbEUeAt>uNMHedPyxKA&+KihRddpF+"
        "vVOKVzqS*sDxUbg`_6rW)R|~~jZY;HiGI<YI&#DPVmjkC%rNjjyU<D_n=|~vYWh(tfvR|sF;nX8<ky;KN#ITbP8e"
        "wq7n%c6ry9y2s)QSxtDXxi#@Ts&fKk%4*xPR|sjp|8g3b+9;qg1`h_CTjCJ?*L^GkSHto^7+COd9fj^6)Z=>>O;Z"
        "%vASL#MyL!t9sD;QpE9LOBt1#e60`;LV~D*y~_yNa){j{v`H9hJ=!7?*GI0Go8{0eoE|hkGrq#kd}EZ{R?w{Q3U",
    ),
}
